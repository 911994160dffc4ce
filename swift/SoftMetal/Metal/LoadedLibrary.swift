import CSoftMetal
import Foundation

/// A compiled library in memory.
final class LoadedLibrary: @unchecked Sendable {
  let path: String
  private let handle: UnsafeMutableRawPointer

  init(path: String) throws {
    guard let handle = dlopen(path, RTLD_NOW | RTLD_LOCAL) else {
      throw MTLLibraryError(code: .internal, message: String(cString: dlerror()))
    }
    self.path = path
    self.handle = handle
    symbol("softmetal_scheduler")!.storeBytes(
      of: softmetal_scheduler_services().pointee, as: softmetal_services.self)
  }
  deinit { dlclose(handle) }

  func symbol(_ name: String) -> UnsafeMutableRawPointer? { dlsym(handle, name) }

  /// Where the library, with its constants, is in memory.
  var image: Range<UnsafeRawPointer> {
    let start = symbol("softmetal_image_start")!
    let end = symbol("softmetal_image_end")!
    return start.load(as: UnsafeRawPointer.self)..<end.load(as: UnsafeRawPointer.self)
  }
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
