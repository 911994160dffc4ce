/**
 * Strict reading of a command's arguments. The parser of the command library is lenient: it accepts
 * unknown flags and flags without their values. So the arguments are checked here against the command's
 * own declaration and rewritten as `--name=value`, the one form in which that parser makes no mistakes.
 * Knows no command.
 */
import type { ArgDef } from "citty";
import { MferenceError } from "../util/errors.ts";

/** A declared argument; `isRepeatable` is read here only. */
export type Argument = ArgDef & { readonly isRepeatable?: boolean };
export type Arguments = Readonly<Record<string, Argument>>;

/**
 * Checks arguments and brings them into the form `--name=value`, `--name`, `--no-name`.
 *
 * @throws MferenceError "usage.flag" for an unknown or repeated flag, "usage.value" for a missing or bad
 * value
 */
export function strictArguments(raw: readonly string[], declared: Arguments): string[] {
  const found: string[] = [];
  const positionals: string[] = [];
  const seen = new Set<string>();
  for (let index = 0; index < raw.length; index += 1) {
    const argument = raw[index]!;
    if (argument === "--") {
      positionals.push(...raw.slice(index + 1));
      break;
    }
    if (!isFlag(argument)) {
      positionals.push(argument);
      continue;
    }
    const flag = readFlag(argument, declared);
    const { name, definition } = flag;
    if (seen.has(name) && definition.isRepeatable !== true) {
      throw new MferenceError("usage.flag", `--${name} was given twice; it takes one value`);
    }
    seen.add(name);
    if (definition.type === "boolean") {
      found.push(flag.isNegated ? `--no-${name}` : `--${name}`);
      continue;
    }
    const value = flag.value ?? nextValue(raw[index + 1], flag, declared);
    if (flag.value === undefined) index += 1;
    found.push(`--${name}=${checkEnum(value, flag)}`);
  }
  checkPositionals(positionals, declared);
  return positionals.length > 0 ? [...found, "--", ...positionals] : found;
}

/** Every value of a repeatable flag, out of arguments that `strictArguments` returned. */
export function repeatedValues(strict: readonly string[], name: string): string[] {
  const start = `--${name}=`;
  const end = strict.indexOf("--");
  return strict
    .slice(0, end < 0 ? strict.length : end)
    .filter((argument) => argument.startsWith(start))
    .map((argument) => argument.slice(start.length));
}

interface Flag {
  readonly name: string;
  readonly definition: Argument;
  readonly value: string | undefined;
  readonly isNegated: boolean;
}

/** A dash alone and negative numbers are values. */
function isFlag(argument: string): boolean {
  return /^-(-|[A-Za-z])/.test(argument);
}

function readFlag(argument: string, declared: Arguments): Flag {
  const [spelling = "", ...rest] = argument.split("=");
  const value = argument.includes("=") ? rest.join("=") : undefined;
  const flag = findFlag(spelling, declared);
  if (flag === undefined) throw unknownFlag(spelling, declared);
  if (flag.definition.type === "boolean" && value !== undefined) {
    throw new MferenceError("usage.value", `${spelling} takes no value, but got "${value}"`);
  }
  return { ...flag, value };
}

function findFlag(spelling: string, declared: Arguments): Omit<Flag, "value"> | undefined {
  const isLong = spelling.startsWith("--");
  const name = spelling.replace(/^--?/, "");
  for (const [key, definition] of Object.entries(declared)) {
    if (definition.type === "positional") continue;
    if (isLong && key === name) return { name: key, definition, isNegated: false };
    const canNegate = definition.type === "boolean" && isNegatable(definition);
    if (isLong && canNegate && name === `no-${key}`)
      return { name: key, definition, isNegated: true };
    const aliases = "alias" in definition ? [definition.alias ?? []].flat() : [];
    if (!isLong && aliases.includes(name)) return { name: key, definition, isNegated: false };
  }
  return undefined;
}

/** A boolean has a `--no-` form when it says what that form does. */
function isNegatable(definition: Argument): boolean {
  return "negativeDescription" in definition && definition.negativeDescription !== undefined;
}

function unknownFlag(spelling: string, declared: Arguments): MferenceError {
  const known = flagSpellings(declared);
  const close = closest(spelling, known);
  const hint =
    close === undefined
      ? known.length === 0
        ? "this command takes no flags"
        : `the flags are ${known.join(", ")}`
      : `did you mean ${close}?`;
  return new MferenceError("usage.flag", `unknown flag ${spelling}; ${hint}`);
}

function flagSpellings(declared: Arguments): string[] {
  return Object.entries(declared).flatMap(([key, definition]) => {
    if (definition.type === "positional") return [];
    return definition.type === "boolean" && isNegatable(definition)
      ? [`--${key}`, `--no-${key}`]
      : [`--${key}`];
  });
}

function nextValue(next: string | undefined, flag: Flag, declared: Arguments): string {
  // A value may begin with a dash ("--prompt -x"), unless it is a flag of this very command.
  const isMissing =
    next === undefined ||
    (next.startsWith("-") && findFlag(next.split("=")[0]!, declared) !== undefined);
  if (!isMissing) return next;
  const { definition, name } = flag;
  const hint = definition.valueHint === undefined ? "" : ` (${definition.valueHint})`;
  throw new MferenceError("usage.value", `--${name} needs a value${hint}`);
}

function checkEnum(value: string, { definition, name }: Flag): string {
  const options = definition.type === "enum" ? (definition.options ?? []) : [];
  if (options.length === 0 || options.includes(value)) return value;
  throw new MferenceError("usage.value", `--${name} must be ${listOf(options)}, not "${value}"`);
}

function checkPositionals(positionals: readonly string[], declared: Arguments): void {
  const places = Object.entries(declared).filter(([, { type }]) => type === "positional");
  const extra = positionals[places.length];
  if (extra !== undefined) {
    const takes =
      places.length === 0
        ? "takes no plain arguments"
        : `takes ${places.map(([name]) => name.toUpperCase()).join(", ")} only`;
    throw new MferenceError("usage.value", `unexpected argument "${extra}": this command ${takes}`);
  }
  for (const [index, [name, definition]] of places.entries()) {
    const value = positionals[index];
    if (value === undefined && definition.required !== false) {
      throw new MferenceError("usage.value", `${name.toUpperCase()} is missing`);
    }
  }
}

/** `a`, `a or b`, `a, b or c`. */
export function listOf(options: readonly string[]): string {
  const last = options.at(-1) ?? "";
  return options.length < 2 ? last : `${options.slice(0, -1).join(", ")} or ${last}`;
}

/** The candidate that a misspelt word most likely meant, if any is near. */
export function closest(word: string, candidates: readonly string[]): string | undefined {
  let best: string | undefined;
  let bestDistance = Math.max(word.length < 4 ? 1 : 2, Math.floor(word.length / 3)) + 1;
  for (const candidate of candidates) {
    const distance = editDistance(word, candidate);
    if (distance < bestDistance) [best, bestDistance] = [candidate, distance];
  }
  return best ?? candidates.find((candidate) => word.length > 3 && candidate.startsWith(word));
}

/** Levenshtein's distance, row by row. */
function editDistance(left: string, right: string): number {
  let row = Array.from({ length: right.length + 1 }, (_, i) => i);
  for (let i = 1; i <= left.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= right.length; j += 1) {
      const change = row[j - 1]! + (left[i - 1] === right[j - 1] ? 0 : 1);
      next.push(Math.min(change, row[j]! + 1, next[j - 1]! + 1));
    }
    row = next;
  }
  return row[right.length]!;
}
