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
    let resident: [SoftBuffer]
    let grid: Grid
    let groupSize: MTLSize

    /// Runs the kernel. Returns a message if it failed.
    func run(configuration: Configuration) -> String? {
        let (groups, threads) = gridSize()
        let groupCount = groups.width * groups.height * groups.depth
        if groupCount == 0 { return nil }

        let ranges = memoryRanges()
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
            dispatch.checked = configuration.checksMemory
            dispatch.range_count = ranges.count
            (dispatch.image_start, dispatch.image_end) = (image.lowerBound, image.upperBound)

            // Small grids are not worth the hand-over to other threads.
            let groupThreads = groupSize.width * groupSize.height * groupSize.depth
            let workers = min(configuration.workers, groupCount, max(1, groupCount * groupThreads / 512))
            addresses.withUnsafeBufferPointer { addresses in
                threadgroupLengths.withUnsafeBufferPointer { lengths in
                    ranges.withUnsafeBufferPointer { ranges in
                        dispatch.buffers = addresses.baseAddress
                        dispatch.threadgroup_lengths = lengths.baseAddress
                        dispatch.ranges = ranges.baseAddress
                        run(&dispatch, workers: workers)
                    }
                }
            }
            return dispatch.failed == 0 ? nil : message(of: &dispatch)
        }
    }

    private func run(_ dispatch: UnsafeMutablePointer<softmetal_dispatch>, workers: Int) {
        if workers == 1 { return softmetal_run(dispatch) }
        nonisolated(unsafe) let dispatch = dispatch
        DispatchQueue.concurrentPerform(iterations: workers) { _ in softmetal_run(dispatch) }
    }

    private func gridSize() -> (groups: MTLSize, threads: MTLSize) {
        func full(_ groups: MTLSize) -> (MTLSize, MTLSize) {
            (groups, MTLSize(
                width: groups.width * groupSize.width, height: groups.height * groupSize.height,
                depth: groups.depth * groupSize.depth))
        }
        switch grid {
        case .threadgroups(let groups):
            return full(groups)
        case .indirect(let buffer, let offset):
            let counts = (0..<3).map { Int((buffer.address + offset).load(fromByteOffset: $0 * 4, as: UInt32.self)) }
            return full(MTLSize(width: counts[0], height: counts[1], depth: counts[2]))
        case .threads(let threads):
            func divide(_ a: Int, _ b: Int) -> Int { (a + b - 1) / b }
            return (MTLSize(
                width: divide(threads.width, groupSize.width), height: divide(threads.height, groupSize.height),
                depth: divide(threads.depth, groupSize.depth)), threads)
        }
    }

    /// What the kernel may touch: the whole of each buffer, not only what follows the offset.
    private func memoryRanges() -> [softmetal_range] {
        var ranges: [softmetal_range] = []
        for (index, argument) in arguments.enumerated() {
            switch argument {
            case .buffer(let buffer, _):
                ranges.append(softmetal_range(start: buffer.address, length: buffer.length, index: Int32(index)))
            case .bytes(let bytes):
                ranges.append(softmetal_range(start: bytes.address, length: bytes.length, index: Int32(index)))
            case nil: break
            }
        }
        for buffer in resident { ranges.append(softmetal_range(start: buffer.address, length: buffer.length, index: -1)) }
        return ranges
    }

    private func message(of dispatch: inout softmetal_dispatch) -> String {
        let text = withUnsafePointer(to: &dispatch.message) {
            $0.withMemoryRebound(to: CChar.self, capacity: 512) { String(cString: $0) }
        }
        guard let pc = dispatch.failure_pc else { return text }
        return text + (pipeline.function.library.sourceLine(of: pc).map { " (\($0))" } ?? "")
    }
}

extension softmetal_size {
    init(_ size: MTLSize) { self.init(x: UInt32(size.width), y: UInt32(size.height), z: UInt32(size.depth)) }
}

extension LoadedLibrary {
    /// `file:line` of a code address, if addr2line is installed.
    func sourceLine(of address: UnsafeRawPointer) -> String? {
        // The address follows the call; one byte before it belongs to the call.
        let offset = "0x" + String(address - image.lowerBound - 1, radix: 16)
        let scratch = (path as NSString).deletingLastPathComponent
        guard let result = try? Subprocess.run("addr2line", ["-e", path, offset], scratch: scratch),
            let line = result.output.split(separator: "/").last, !line.hasPrefix("?")
        else { return nil }
        return line.trimmingCharacters(in: .whitespacesAndNewlines)
    }
}
