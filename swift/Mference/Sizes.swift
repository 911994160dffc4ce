// Numbers that cross the ABI as doubles: NaN, negative and fractional values are refused here.
import CMference

/// 2^53: beyond it a double no longer names every whole number.
private let exactMax = 9_007_199_254_740_992.0

/// A byte count or an offset.
func size(_ value: Double, _ what: String) throws -> Int {
  guard value >= 0, value <= exactMax, value.rounded(.towardZero) == value else {
    throw Failure(MF_ERR_ARGUMENT, "\(what) is \(value); a whole number from 0 to 2^53 was expected")
  }
  return Int(value)
}

/// A byte count of at least 1.
func positiveSize(_ value: Double, _ what: String) throws -> Int {
  let bytes = try size(value, what)
  guard bytes > 0 else {
    throw Failure(MF_ERR_ARGUMENT, "\(what) is 0; at least 1 was expected")
  }
  return bytes
}

/// The value of an event.
func eventValue(_ value: Double) throws -> UInt64 {
  UInt64(try size(value, "the value of an event"))
}

/// A timeout in seconds; what is beyond a century waits for ever.
func timeout(_ seconds: Double) throws -> Double {
  guard seconds >= 0 else {
    throw Failure(MF_ERR_ARGUMENT, "a timeout is \(seconds) seconds; 0 or more was expected")
  }
  return min(seconds, 3.2e9)
}

/// A count for a sentence; products of wrong parameters may be beyond any whole number.
func shown(_ count: Double) -> String { count <= exactMax ? String(Int(count)) : String(count) }

/// The smallest multiple of `unit` that is at least `bytes`.
func roundUp(_ bytes: Int, to unit: Int) -> Int { (bytes + unit - 1) / unit * unit }
