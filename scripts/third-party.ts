/** The licences of everything that a compiled program is made of besides this repository. */
import fs from "node:fs";
import path from "node:path";
import manifest from "../package.json";
import { findCargo } from "../src/native/build-tokenizer.ts";
import { ROOT } from "../src/native/built.ts";
import { MferenceError } from "../src/util/errors.ts";

/** A package that went in. */
interface Part {
  readonly name: string;
  readonly version: string;
  readonly licence: string;
  /** Where its licence files lie. */
  readonly folder: string;
}

const LICENCE_FILE = /^(licen[cs]e|copying|notice|unlicense)/i;

const BUN = `Bun ${Bun.version}: MIT. It contains JavaScriptCore (LGPL-2.1) and further libraries, listed with
their licences and with how to link it anew on https://bun.com/docs/project/licensing`;

/**
 * One text with the licence of every package.
 *
 * @throws MferenceError "native.build" when the list of the Rust packages cannot be had
 */
export async function thirdPartyNotices(): Promise<string> {
  const parts = [...scriptParts(), ...(await crateParts())];
  const sections = parts.map(({ name, version, licence, folder }) => {
    const files = fs.readdirSync(folder).filter((file) => LICENCE_FILE.test(file));
    const paths = files.toSorted().map((file) => path.join(folder, file));
    const texts = paths.filter((file) => fs.statSync(file).isFile()).map(readText);
    return [`${name} ${version}: ${licence}`, ...texts].join("\n\n");
  });
  const rule = `\n\n${"-".repeat(80)}\n\n`;
  return `${["What this program contains of others", BUN, ...sections].join(rule)}\n`;
}

const readText = (file: string): string => fs.readFileSync(file, "utf8").trim();

function scriptParts(): Part[] {
  return Object.keys(manifest.dependencies).map((name) => {
    const folder = path.join(ROOT, "node_modules", name);
    const { version, license } = JSON.parse(readText(path.join(folder, "package.json"))) as {
      version: string;
      license: string;
    };
    return { name, version, licence: license, folder };
  });
}

async function crateParts(): Promise<Part[]> {
  const command = ["metadata", "--format-version", "1", "--locked", "--offline"];
  const child = Bun.spawn([findCargo() ?? "cargo", ...command], {
    cwd: path.join(ROOT, "tokenizers"),
    stdin: "ignore",
    stdout: "pipe",
    stderr: "inherit",
  });
  const [text, status] = await Promise.all([new Response(child.stdout).text(), child.exited]);
  if (status !== 0) {
    throw new MferenceError("native.build", `cargo metadata failed with status ${status}`);
  }
  const { packages } = JSON.parse(text) as {
    packages: {
      name: string;
      version: string;
      license: string | null;
      manifest_path: string;
      source: string | null;
    }[];
  };
  return packages
    .filter(({ source }) => source !== null)
    .map(({ name, version, license, manifest_path }) => {
      const folder = path.dirname(manifest_path);
      return { name, version, licence: license ?? "see its files", folder };
    });
}
