import CSoftMetal
import Foundation

final class SoftFunction: MTLFunction, @unchecked Sendable {
  var label: String?
  let device: any MTLDevice
  let kernel: Translation.Kernel
  let entryPoint: softmetal_kernel
  let library: LoadedLibrary  // keeps the code in memory
  let functionType = MTLFunctionType.kernel
  var name: String { kernel.name }

  init(device: SoftDevice, kernel: Translation.Kernel, library: LoadedLibrary) {
    (self.device, self.kernel, self.library) = (device, kernel, library)
    entryPoint = unsafeBitCast(library.symbol(kernel.entryPoint)!, to: softmetal_kernel.self)
  }
}
