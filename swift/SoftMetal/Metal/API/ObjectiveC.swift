// What Foundation brings on a Mac and not elsewhere.

/// Objective-C's pool; nothing here is released late.
public func autoreleasepool<Result>(invoking body: () throws -> Result) rethrows -> Result {
  try body()
}
