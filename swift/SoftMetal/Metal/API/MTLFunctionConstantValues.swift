public final class MTLFunctionConstantValues: @unchecked Sendable {
  var literals = ConstantLiterals()

  public init() {}
  public func reset() { literals = ConstantLiterals() }

  public func setConstantValue(_ value: UnsafeRawPointer, type: MTLDataType, index: Int) {
    literals.byIndex[index] = Self.literal(value, type)
  }
  public func setConstantValue(_ value: UnsafeRawPointer, type: MTLDataType, withName name: String)
  {
    literals.byName[name] = Self.literal(value, type)
  }
  public func setConstantValues(_ values: UnsafeRawPointer, type: MTLDataType, range: Range<Int>) {
    let stride = Self.layout(type).stride
    for (i, index) in range.enumerated() {
      literals.byIndex[index] = Self.literal(values + i * stride, type)
    }
  }

  /// The scalar types start at these values; the vectors of 2, 3 and 4 components follow.
  private static let scalars: [(first: MTLDataType, name: String, size: Int)] = [
    (.float, "float", 4), (.half, "half", 2), (.int, "int", 4), (.uint, "uint", 4),
    (.short, "short", 2),
    (.ushort, "ushort", 2), (.char, "char", 1), (.uchar, "uchar", 1), (.bool, "bool", 1),
    (.long, "long", 8),
    (.ulong, "ulong", 8), (.bfloat, "bfloat", 2),
  ]

  private static func layout(_ type: MTLDataType) -> (
    name: String, size: Int, components: Int, stride: Int
  ) {
    let scalar = scalars.first { $0.first.rawValue...($0.first.rawValue + 3) ~= type.rawValue }
    guard let scalar else { preconditionFailure("a function constant cannot be of type \(type)") }
    let components = Int(type.rawValue - scalar.first.rawValue) + 1
    return (scalar.name, scalar.size, components, scalar.size * (components == 3 ? 4 : components))
  }

  /// The value as C++, bit for bit.
  private static func literal(_ value: UnsafeRawPointer, _ type: MTLDataType) -> String {
    let layout = layout(type)
    let parts = (0..<layout.components).map { i -> String in
      let bits = (0..<layout.size).reversed().reduce(UInt64(0)) {
        $0 << 8 | UInt64(value.load(fromByteOffset: i * layout.size + $1, as: UInt8.self))
      }
      if layout.name == "bool" { return bits & 0xFF != 0 ? "true" : "false" }
      let sameSize = [1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"][layout.size]!
      return "__builtin_bit_cast(\(layout.name), \(sameSize)(\(bits)ul))"
    }
    return parts.count == 1 ? parts[0] : "{" + parts.joined(separator: ", ") + "}"
  }
}
