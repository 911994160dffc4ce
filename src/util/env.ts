/**
 * The only reader of `process.env`. Every variable the program looks at is named here with its
 * meaning, so that `mference doctor` and the documentation can list them.
 */
const VARIABLES = {
  MFERENCE_HOME: "folder of the installed models and of the program's state",
  MFERENCE_LIBRARY: "path of a device library to load instead of the built one",
  MFERENCE_SIMD: "instruction set of the CPU device: portable, avx2, avx512 or neon",
  MFERENCE_TOKENIZER: "text library: native or script",
  MFERENCE_BUILD_DIR: "folder of the built native libraries",
  XDG_DATA_HOME: "platform data folder, used when MFERENCE_HOME is not set",
  XDG_CACHE_HOME: "cache folder, for the libraries that a compiled program copies out of itself",
  HF_TOKEN: "token for the Hub; sent to no other host",
  HF_ENDPOINT: "address of a mirror of the Hub (default https://huggingface.co)",
  HTTPS_PROXY: "proxy for downloads",
  HTTP_PROXY: "proxy for downloads without encryption",
  http_proxy: "the same",
  NO_PROXY: "hosts that are reached without a proxy",
  HOME: "the user's home folder",
  CC: "C compiler that builds the CPU device",
  CARGO: "cargo that builds the tokenizer library",
  TERM: "kind of terminal; dumb: no colours",
  NO_COLOR: "set to anything: no colours",
  TMPDIR: "folder for temporary files",
  CI: "set in continuous integration",
} as const;

export type VariableName = keyof typeof VARIABLES;

/** The value of a registered variable; an empty one counts as unset. */
export function env(name: VariableName): string | undefined {
  const value = process.env[name];
  return value === "" ? undefined : value;
}

/** The value of a variable as it may be shown: no token, and no password within an address. */
export function shownEnv(name: VariableName): string | undefined {
  const value = env(name);
  if (value === undefined || name !== "HF_TOKEN") return value?.replace(/\/\/[^/@]*@/g, "//***@");
  return "***";
}

/** Every variable with its meaning. */
export const environmentVariables: Readonly<Record<VariableName, string>> = VARIABLES;
