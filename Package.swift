// swift-tools-version:6.0
// The Metal device. On macOS `import Metal` finds Apple's framework and no target of that name
// exists; elsewhere it finds the test equipment in swift/SoftMetal, so that the sources of Mference
// are the same on both. This is the only place that knows the difference.
import PackageDescription

/// Apple's declarations and ours differ in Sendable annotations; Swift 5 mode accepts both.
let settings: [SwiftSetting] = [.swiftLanguageMode(.v5)]

#if os(macOS)
  let metal: [Target.Dependency] = []
  let testEquipment: [Target] = []
#else
  let metal: [Target.Dependency] = ["Metal"]
  let testEquipment: [Target] = [
    .target(name: "CSoftMetal", path: "swift/SoftMetal/CSoftMetal"),
    .target(
      name: "Metal",
      dependencies: ["CSoftMetal"],
      path: "swift/SoftMetal/Metal",
      resources: [.embedInCode("MSL")],
      swiftSettings: settings),
    .testTarget(
      name: "SoftMetalTests",
      dependencies: ["Metal"],
      path: "swift/Tests/SoftMetalTests",
      swiftSettings: settings),
  ]
#endif

let package = Package(
  name: "mference",
  platforms: [.macOS(.v15)],
  products: [.library(name: "mference", type: .dynamic, targets: ["Mference"])],
  targets: testEquipment + [
    .systemLibrary(name: "CMference", path: "include"),
    .target(
      name: "Mference",
      dependencies: metal + ["CMference"],
      path: "swift/Mference",
      swiftSettings: settings,
      // Without it a process that draws nothing may be told that there is no default device.
      linkerSettings: [.linkedFramework("CoreGraphics", .when(platforms: [.macOS]))]),
  ])
