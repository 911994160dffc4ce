import CSoftMetal
import Foundation

final class SoftComputePipelineState: MTLComputePipelineState, @unchecked Sendable {
  let device: any MTLDevice
  let function: SoftFunction
  let label: String? = nil
  let threadExecutionWidth: Int
  let maxTotalThreadsPerThreadgroup: Int

  init(device: SoftDevice, function: SoftFunction) throws {
    if function.kernel.usesConstants {
      throw MTLLibraryError(
        code: .compileFailure,
        message: "\(function.name) uses function constants: make it with constantValues")
    }
    (self.device, self.function) = (device, function)
    let isNarrow = device.configuration.injection.fails(.width)
    threadExecutionWidth = isNarrow ? SOFTMETAL_SIMD_WIDTH / 2 : SOFTMETAL_SIMD_WIDTH
    maxTotalThreadsPerThreadgroup = function.kernel.maxTotalThreads ?? SOFTMETAL_MAX_THREADS
  }
}
