// The kernels of the catalogue as compute pipelines: one source text, compiled when a device opens;
// a pipeline for each kernel and each set of its specialised parameters, made at its first use.
import CMference
import Foundation
import Metal

final class Pipelines: @unchecked Sendable {
  private let library: any MTLLibrary
  private let lock = NSLock()
  private var made: [Key: any MTLComputePipelineState] = [:]

  private struct Key: Hashable {
    let kernel: UInt32
    let constants: [UInt32]
    let isWide: Bool
  }

  init(_ device: any MTLDevice) throws {
    let options = MTLCompileOptions()
    options.languageVersion = .version3_2
    // Norms, softmax and rotations are held to float32 references.
    options.mathMode = .safe
    do {
      library = try device.makeLibrary(source: String(cString: mf_shader_source()), options: options)
    } catch {
      throw Failure(MF_ERR_DEVICE, "the shaders do not compile: \(error.localizedDescription)")
    }
  }

  /// The pipeline of a kernel for the parameters of one dispatch.
  func pipeline(_ kernel: UInt32, _ params: UnsafeRawPointer) throws
    -> any MTLComputePipelineState
  {
    let constants = Self.constants(of: kernel).map { constant in
      params.load(fromByteOffset: 4 * Int(constant.param), as: UInt32.self)
    }
    let wide = mf_wide_of(kernel)
    let isWide =
      wide.param >= 0
      && params.load(fromByteOffset: 4 * Int(wide.param), as: UInt32.self) >= wide.least
    return try lock.withLock {
      let key = Key(kernel: kernel, constants: constants, isWide: isWide)
      if let known = made[key] { return known }
      let pipeline = try make(key)
      made[key] = pipeline
      return pipeline
    }
  }

  private func make(_ key: Key) throws -> any MTLComputePipelineState {
    let name = String(cString: mf_kernel_name(key.kernel)) + (key.isWide ? "_wide" : "")
    do {
      let values = MTLFunctionConstantValues()
      for (constant, value) in zip(Self.constants(of: key.kernel), key.constants) {
        withUnsafePointer(to: value) {
          values.setConstantValue($0, type: .uint, index: Int(constant.index))
        }
      }
      let function = try library.makeFunction(name: name, constantValues: values)
      let made = try library.device.makeComputePipelineState(function: function)
      if made.threadExecutionWidth == Self.lanes { return made }
      throw Failure(
        MF_ERR_KERNEL, "SIMD-groups of \(made.threadExecutionWidth) lanes; \(Self.lanes) were expected")
    } catch {
      let reason = (error as? Failure)?.sentence ?? error.localizedDescription
      throw Failure(MF_ERR_KERNEL, "kernel \(name) with constants \(key.constants): \(reason)")
    }
  }

  /// Of a SIMD-group, as the kernels take it for granted.
  private static let lanes = 32

  /// The parameters of a kernel that its pipelines are specialised by.
  private static func constants(of kernel: UInt32) -> [mf_constant] {
    var found: [mf_constant] = []
    var next = mf_constant_at(kernel, 0)
    while next.index >= 0 {
      found.append(next)
      next = mf_constant_at(kernel, UInt32(found.count))
    }
    return found
  }
}
