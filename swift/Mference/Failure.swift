// Why a call failed: a status of mf.h and one sentence. Sentences are kept for each thread.
import CMference
import Foundation
import Metal

struct Failure: Error {
  let status: mf_status
  let sentence: String

  init(_ status: mf_status, _ sentence: String) {
    self.status = status
    self.sentence = sentence
  }
}

enum LastError {
  private static let key = "mference.last-error"

  static var sentence: String {
    get { Thread.current.threadDictionary[key] as? String ?? "" }
    set { Thread.current.threadDictionary[key] = newValue }
  }
}

/// Runs the body of an exported function: a thrown failure becomes its status and this thread's sentence. The
/// caller's thread has no autorelease pool; without one, command buffers and what they bind would stay for ever.
func status(of body: () throws -> Void) -> Int32 {
  do {
    try autoreleasepool(invoking: body)
    return Int32(MF_OK.rawValue)
  } catch {
    let failure = error as? Failure ?? Failure(MF_ERR_DEVICE, error.localizedDescription)
    LastError.sentence = failure.sentence
    return Int32(failure.status.rawValue)
  }
}
