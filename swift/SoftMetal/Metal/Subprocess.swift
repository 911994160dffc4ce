import Foundation

/// Runs a program with files as its standard streams. (Foundation's Process takes 50 ms to notice
/// the exit.)
enum Subprocess {
  struct Failure: Error, CustomStringConvertible { let description: String }

  static func run(
    _ program: String, _ arguments: [String], input: String = "", scratch: String
  ) throws -> (status: Int32, output: String, errors: String) {
    let files = ["in", "out", "err"].map { "\(scratch)/\(UUID().uuidString).\($0)" }
    defer { for file in files { unlink(file) } }
    try input.write(toFile: files[0], atomically: false, encoding: .utf8)

    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_addopen(&actions, 0, files[0], O_RDONLY, 0)
    posix_spawn_file_actions_addopen(&actions, 1, files[1], O_WRONLY | O_CREAT, 0o600)
    posix_spawn_file_actions_addopen(&actions, 2, files[2], O_WRONLY | O_CREAT, 0o600)

    var argv: [UnsafeMutablePointer<CChar>?] = ([program] + arguments).map { strdup($0) } + [nil]
    defer { for argument in argv { free(argument) } }
    var pid = pid_t()
    let code = posix_spawnp(&pid, program, &actions, nil, &argv, environ)
    guard code == 0 else {
      throw Failure(description: "cannot run \(program): \(String(cString: strerror(code)))")
    }
    var status: Int32 = 0
    while waitpid(pid, &status, 0) < 0 && errno == EINTR {}
    func read(_ path: String) -> String {
      (try? String(contentsOfFile: path, encoding: .utf8)) ?? ""
    }
    return (status, read(files[1]), read(files[2]))
  }
}
