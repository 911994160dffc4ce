import CSoftMetal
import Foundation

/// One kernel launch with everything that was set when it was encoded.
struct Dispatch {
  enum Argument {
    case buffer(SoftBuffer, offset: Int)
    case bytes(Bytes)
  }
  enum Grid {
    case threadgroups(MTLSize)
    case threads(MTLSize)
    case indirect(SoftBuffer, offset: Int)
  }
  /// A copy of what setBytes was given.
  final class Bytes {
    let address: UnsafeMutableRawPointer
    let length: Int
    init(copying bytes: UnsafeRawPointer, length: Int) {
      address = .allocate(byteCount: max(length, 1), alignment: 256)
      address.copyMemory(from: bytes, byteCount: length)
      self.length = length
    }
    deinit { address.deallocate() }
  }

  let pipeline: SoftComputePipelineState
  let arguments: [Argument?]
  let threadgroupLengths: [Int]
  let resident: [(buffer: SoftBuffer, usage: MTLResourceUsage)]
  let extents: Extents
  let grid: Grid
  let groupSize: MTLSize

  /// What became of it. `touched` is known for checked runs only.
  struct Outcome {
    var failure: String?
    var touched: [Touch] = []
  }

  func run(configuration: Configuration) -> Outcome {
    let (groups, threads) = gridSize()
    let groupCount = groups.width * groups.height * groups.depth
    if groupCount == 0 { return Outcome() }

    let addresses = arguments.map { argument -> UnsafeMutableRawPointer? in
      switch argument {
      case .buffer(let buffer, let offset): buffer.address + offset
      case .bytes(let bytes): bytes.address
      case nil: nil
      }
    }
    let image = pipeline.function.library.image
    return pipeline.function.name.withCString { name in
      var dispatch = softmetal_dispatch()
      dispatch.kernel = pipeline.function.entryPoint
      dispatch.kernel_name = name
      dispatch.grid_groups = softmetal_size(groups)
      dispatch.grid_threads = softmetal_size(threads)
      dispatch.group_size = softmetal_size(groupSize)
      dispatch.order = configuration.order
      dispatch.seed = configuration.seed
      dispatch.allow_divergent_simd = configuration.allowsDivergentSIMD
      dispatch.checked = configuration.checks
      (dispatch.image_start, dispatch.image_end) = (image.lowerBound, image.upperBound)
      return addresses.withUnsafeBufferPointer { addresses in
        threadgroupLengths.withUnsafeBufferPointer { lengths in
          dispatch.buffers = addresses.baseAddress
          dispatch.threadgroup_lengths = lengths.baseAddress
          softmetal_watch_pages()
          var outcome = run(&dispatch, configuration, groupCount: groupCount)
          softmetal_unwatch_pages()
          if hasLostPages, outcome.failure == nil {
            outcome.failure = "\(pipeline.function.name): a mapped file was cut or could not be read"
          }
          return outcome
        }
      }
    }
  }

  private var hasLostPages: Bool {
    arguments.contains {
      guard case .buffer(let buffer, _)? = $0 else { return false }
      return softmetal_has_lost(buffer.address, buffer.length)
    }
  }

  private func run(
    _ dispatch: inout softmetal_dispatch, _ configuration: Configuration, groupCount: Int
  ) -> Outcome {
    if configuration.checks { return runChecked(&dispatch, configuration) }
    // Small grids are not worth the hand-over to other threads.
    let groupThreads = groupSize.width * groupSize.height * groupSize.depth
    let workers = min(
      configuration.workers, groupCount, max(1, groupCount * groupThreads / 512))
    run(&dispatch, workers: workers)
    return Outcome(failure: failure(of: &dispatch))
  }

  private func run(_ dispatch: UnsafeMutablePointer<softmetal_dispatch>, workers: Int) {
    if workers == 1 { return softmetal_run(dispatch) }
    nonisolated(unsafe) let dispatch = dispatch
    DispatchQueue.concurrentPerform(iterations: workers) { _ in softmetal_run(dispatch) }
  }

  private func runChecked(_ dispatch: inout softmetal_dispatch, _ configuration: Configuration)
    -> Outcome
  {
    var bindings: [softmetal_binding]
    do {
      bindings = try self.bindings(allowsUndeclared: configuration.allowsUndeclared)
    } catch {
      return Outcome(failure: "\(pipeline.function.name): \(error)")
    }
    let names = bindings.map { strdup(pipeline.function.kernel.bufferNames[Int($0.index)] ?? "") }
    defer { for name in names { free(name) } }
    for (i, name) in names.enumerated() { bindings[i].name = UnsafePointer(name) }
    bindings.withUnsafeMutableBufferPointer {
      dispatch.bindings = $0.baseAddress
      dispatch.binding_count = $0.count
      softmetal_run_checked(&dispatch)
    }
    return Outcome(failure: failure(of: &dispatch), touched: bindings.flatMap(touches))
  }

  private func gridSize() -> (groups: MTLSize, threads: MTLSize) {
    func full(_ groups: MTLSize) -> (MTLSize, MTLSize) {
      (
        groups,
        MTLSize(
          width: groups.width * groupSize.width, height: groups.height * groupSize.height,
          depth: groups.depth * groupSize.depth)
      )
    }
    switch grid {
    case .threadgroups(let groups):
      return full(groups)
    case .indirect(let buffer, let offset):
      let counts = (0..<3).map {
        Int((buffer.address + offset).load(fromByteOffset: $0 * 4, as: UInt32.self))
      }
      return full(MTLSize(width: counts[0], height: counts[1], depth: counts[2]))
    case .threads(let threads):
      func divide(_ a: Int, _ b: Int) -> Int { (a + b - 1) / b }
      return (
        MTLSize(
          width: divide(threads.width, groupSize.width),
          height: divide(threads.height, groupSize.height),
          depth: divide(threads.depth, groupSize.depth)), threads
      )
    }
  }

  private func failure(of dispatch: inout softmetal_dispatch) -> String? {
    guard dispatch.failed != 0 else { return nil }
    let capacity = MemoryLayout.size(ofValue: dispatch.message)
    let text = withUnsafePointer(to: &dispatch.message) {
      $0.withMemoryRebound(to: CChar.self, capacity: capacity) { String(cString: $0) }
    }
    guard let pc = dispatch.failure_pc else { return text }
    return text + (pipeline.function.library.sourceLine(of: pc).map { " (\($0))" } ?? "")
  }
}

extension softmetal_size {
  init(_ size: MTLSize) {
    self.init(x: UInt32(size.width), y: UInt32(size.height), z: UInt32(size.depth))
  }
}
