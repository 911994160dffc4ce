/**
 * Loads a device library. The symbol table below is the only list of its functions on this side; the
 * other is include/mf.h. Knows no kernel and no model.
 */
import { dlopen, toArrayBuffer } from "bun:ffi";
import { catalogueHash } from "../kernels/index.ts";
import { type ErrorCode, MferenceError, sentenceOf } from "../util/errors.ts";

const ABI_VERSION = 1;

const SYMBOLS = {
  mf_abi_version: { args: [], returns: "u32" },
  mf_catalogue_hash: { args: [], returns: "u32" },
  mf_last_error: { args: ["ptr", "u32"], returns: "i32" },
  mf_device_create: { args: ["ptr", "ptr"], returns: "i32" },
  mf_device_info: { args: ["u32", "ptr"], returns: "i32" },
  mf_device_destroy: { args: ["u32"], returns: "i32" },
  mf_counters: { args: ["u32", "ptr"], returns: "i32" },
  mf_memory_allocate: { args: ["f64", "ptr"], returns: "i32" },
  mf_memory_map: { args: ["ptr", "ptr"], returns: "i32" },
  mf_memory_contents: { args: ["u32", "ptr", "ptr"], returns: "i32" },
  mf_memory_release: { args: ["u32"], returns: "i32" },
  mf_buffer_create: { args: ["u32", "f64", "ptr"], returns: "i32" },
  mf_buffer_from_memory: { args: ["u32", "u32", "f64", "f64", "ptr"], returns: "i32" },
  mf_buffer_contents: { args: ["u32", "ptr", "ptr"], returns: "i32" },
  mf_buffer_destroy: { args: ["u32"], returns: "i32" },
  mf_event_create: { args: ["u32", "ptr"], returns: "i32" },
  mf_event_value: { args: ["u32", "ptr"], returns: "i32" },
  mf_event_signal: { args: ["u32", "f64"], returns: "i32" },
  mf_event_wait: { args: ["u32", "f64", "f64"], returns: "i32" },
  mf_event_destroy: { args: ["u32"], returns: "i32" },
  mf_submit: { args: ["u32", "ptr", "f64"], returns: "i32" },
  mf_finish: { args: ["u32", "f64"], returns: "i32" },
  mf_cancel: { args: ["u32"], returns: "i32" },
  mf_resume: { args: ["u32"], returns: "i32" },
} as const;

export type Symbols = ReturnType<typeof dlopen<typeof SYMBOLS>>["symbols"];

/** Status codes of include/mf.h that callers tell apart; every other one is `native.call`. */
const STATUS_CODES: Readonly<Record<number, ErrorCode>> = {
  [-3]: "native.memory",
  [-6]: "native.timeout",
  [-7]: "native.cancelled",
};

/**
 * Opens a device library and refuses one that was built for another ABI or another catalogue.
 *
 * @throws MferenceError "native.load", "native.abi"
 */
export function openLibrary(path: string): Symbols {
  let symbols: Symbols;
  try {
    symbols = dlopen(path, SYMBOLS).symbols;
  } catch (cause) {
    const reason = `cannot load the device library ${path}: ${sentenceOf(cause)}`;
    throw new MferenceError("native.load", reason, { cause });
  }
  const version = symbols.mf_abi_version();
  if (version !== ABI_VERSION) {
    throw new MferenceError(
      "native.abi",
      `${path} has ABI version ${version}, expected ${ABI_VERSION}: build it again`,
    );
  }
  if (symbols.mf_catalogue_hash() !== catalogueHash()) {
    throw new MferenceError(
      "native.abi",
      `${path} was built from another kernel catalogue: run \`bun run gen\` and build it again`,
    );
  }
  return symbols;
}

/** The sentence that the library holds for this thread's last failed call. */
function lastSentence(symbols: Symbols): string {
  const text = new Uint8Array(512);
  symbols.mf_last_error(text, text.length);
  const end = text.indexOf(0);
  return new TextDecoder().decode(text.subarray(0, Math.max(0, end)));
}

/** Turns a native status into an exception that carries the library's own sentence. */
export function check(symbols: Symbols, status: number, call: string): void {
  if (status === 0) return;
  throw new MferenceError(
    STATUS_CODES[status] ?? "native.call",
    `${call}: ${lastSentence(symbols)} (status ${status})`,
  );
}

/** Most bytes that one view of foreign memory may cover (Bun's limit for `toArrayBuffer`). */
const VIEW_BYTES_MAX = 2 ** 32;

/**
 * A view of foreign memory; it stays valid only as long as its owner keeps the memory.
 *
 * @throws MferenceError "native.memory" beyond 4 GiB
 */
export function viewMemory(address: number, bytes: number): Uint8Array<ArrayBuffer> {
  if (bytes > VIEW_BYTES_MAX) {
    throw new MferenceError("native.memory", `a view of ${bytes} bytes exceeds ${VIEW_BYTES_MAX}`);
  }
  // The type wants Bun's branded pointer; an address out of the library is one.
  return new Uint8Array(toArrayBuffer(address, 0, bytes));
}
