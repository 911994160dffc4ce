import Foundation

/// What a dispatch says about the buffers it binds: how many bytes from the offset on it may touch,
/// and how. Metal has no call for that; checked runs read it from the names of debug groups, which
/// a program gives its dispatches for captures in Xcode as well:
///
///     encoder.pushDebugGroup("rms_norm 0:read:4096 1:read:2048 2:write:4096")
///
/// Words of another form are free text.
struct Extents {
  enum Access: String {
    case read, write, update
  }
  struct Extent {
    var access: Access
    var bytes: Int
  }
  var byIndex: [Int: Extent] = [:]

  init() {}

  init(_ text: String) {
    for word in text.split(separator: " ") {
      let parts = word.split(separator: ":")
      guard parts.count == 3, let index = Int(parts[0]), let bytes = Int(parts[2]), bytes >= 0,
        let access = Access(rawValue: String(parts[1]))
      else { continue }
      byIndex[index] = Extent(access: access, bytes: bytes)
    }
  }
}
