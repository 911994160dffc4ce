final class SoftFence: MTLFence, @unchecked Sendable {
    let device: any MTLDevice
    var label: String?
    init(device: SoftDevice) { self.device = device }
}
