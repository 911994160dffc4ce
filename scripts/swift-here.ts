/**
 * Where Swift can run on this machine: directly, or in a Debian 13 that is made in a folder of its own, since
 * libraries built there need a newer libc than an older Debian has. Owns that folder, outside of the clone,
 * and how a command is run in it; mounts live in a namespace of their own and go with the command.
 */
import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { ROOT } from "../src/native/built.ts";

/** How to run a command where Swift is; or why there is none. */
export type SwiftPlace =
  | { readonly kind: "here" }
  | { readonly kind: "chroot"; readonly root: string }
  | { readonly kind: "none"; readonly reason: string };

const SUITE = "trixie";
const DEFAULT_ROOT = `/var/cache/mference/${SUITE}`;
const PACKAGES = ["swiftlang", "g++", "binutils", "git", "ca-certificates"];
/** Written last: a folder without it is not complete. */
const MARK = ".mference-complete";
const MINIMAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/** Finds Swift, and on a Debian machine makes a place for it if need be. */
export async function findSwift(root = DEFAULT_ROOT): Promise<SwiftPlace> {
  if (Bun.which("swift") !== null) return { kind: "here" };
  if (process.platform !== "linux") return { kind: "none", reason: "swift was not found" };
  if (existsSync(join(root, MARK))) return { kind: "chroot", root };
  const missing = ["debootstrap", "unshare", "chroot"].filter((name) => Bun.which(name) === null);
  if (missing.length > 0) {
    return {
      kind: "none",
      reason: `swift was not found, nor ${missing.join(", ")} to get it with`,
    };
  }
  if (process.getuid?.() !== 0) {
    return { kind: "none", reason: "swift was not found, and only root can make a place for it" };
  }
  try {
    await makeRoot(root);
    return { kind: "chroot", root };
  } catch (error) {
    return { kind: "none", reason: `no Debian ${SUITE} could be made: ${String(error)}` };
  }
}

/** A Debian with Swift, complete or not there at all. */
async function makeRoot(root: string): Promise<void> {
  console.log(`making a Debian ${SUITE} with Swift in ${root} (once, some minutes and 3.4 GB)`);
  mkdirSync(dirname(root), { recursive: true });
  const making = `${root}.making-${process.pid}`;
  try {
    await run(["debootstrap", "--variant=minbase", SUITE, making]);
    const install = "apt-get -qq update && apt-get -qq install -y --no-install-recommends";
    const clean = "apt-get clean && rm -rf /var/lib/apt/lists/*";
    const script = `export DEBIAN_FRONTEND=noninteractive; ${install} ${PACKAGES.join(" ")} && ${clean}`;
    await run(inRoot(making, ["sh", "-c", script]));
    writeFileSync(join(making, MARK), `${PACKAGES.join(" ")}\n`);
    // Somebody else may have been faster.
    if (existsSync(join(root, MARK))) return;
    rmSync(root, { recursive: true, force: true });
    renameSync(making, root);
  } finally {
    rmSync(making, { recursive: true, force: true });
  }
}

/** The command that runs `command` in the folder `root` as if that were the system, this clone included. */
export function inRoot(root: string, command: readonly string[]): string[] {
  mkdirSync(join(root, ROOT), { recursive: true });
  const script = [
    'mount --bind "$1" "$2$1"',
    'mount -t proc proc "$2/proc"',
    'mount --rbind /dev "$2/dev"',
    'mount --rbind /sys "$2/sys"',
    'root=$2; directory=$1; shift 2; exec chroot "$root" env -i "$@"',
  ].join(" && ");
  const proxies = Object.entries(process.env).filter(([name]) => /^https?_proxy$/i.test(name));
  const env = [
    `--chdir=${ROOT}`,
    `PATH=${MINIMAL_PATH}`,
    "HOME=/root",
    "LANG=C.UTF-8",
    ...proxies.map(([name, value]) => `${name}=${value}`),
  ];
  return ["unshare", "--mount", "sh", "-c", script, "sh", ROOT, root, ...env, ...command];
}

async function run(command: readonly string[]): Promise<void> {
  const child = Bun.spawn([...command], { stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const [output, errors, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (status === 0) return;
  const last = `${output}\n${errors}`.trim().split("\n").slice(-20).join("\n");
  throw new Error(`${command[0]} ended with status ${status}:\n${last}`);
}
