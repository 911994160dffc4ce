import { beforeEach, describe, expect, test } from "bun:test";
import fs from "node:fs";
import path from "node:path";
import { systemIo } from "../../src/install/durable.ts";
import {
  checkSaved,
  readSaved,
  removeSaved,
  resumePath,
  writeSaved,
  type SavedDownload,
} from "../../src/install/resume.ts";
import { temporaryFolder } from "../fixtures/checkpoints.ts";

const SHA = "a".repeat(64);
const SAVED: SavedDownload = {
  schema: 1,
  repoID: "owner/model",
  requestedRevision: "main",
  resolvedCommit: "b".repeat(40),
  sourceIndexSHA256: SHA,
  planFingerprint: SHA,
  totalSourceBytes: 100,
  completedRanges: [
    { id: "range-00000001", destinationDigest: SHA, sourceBytes: 40, destinationBytes: 80 },
    { id: "range-00000000", destinationDigest: SHA, sourceBytes: 60, destinationBytes: 60 },
  ],
  family: "f",
};

let directory: string;
beforeEach(() => {
  directory = path.join(temporaryFolder(), "m.gturbo");
});

const put = (json: unknown): void =>
  fs.writeFileSync(resumePath(directory), typeof json === "string" ? json : JSON.stringify(json));
const damaged = () => readSaved(directory);

describe("the record of a download", () => {
  test("comes back as it was written, sorted, and is small", () => {
    expect(readSaved(directory)).toBeUndefined();
    writeSaved(directory, SAVED, systemIo);
    const completedRanges = SAVED.completedRanges.toReversed();
    expect(readSaved(directory)).toEqual({ ...SAVED, completedRanges });
    const status = fs.statSync(resumePath(directory));
    expect(status.size).toBeLessThan(1024);
    removeSaved(directory, systemIo);
    expect(fs.readdirSync(path.dirname(directory))).toEqual([]);
  });

  test("of another program, without what is ours, is taken", () => {
    const { family: _, ...theirs } = SAVED;
    put(JSON.stringify(theirs).replaceAll("/", "\\/"));
    const { schema: _schema, completedRanges: _ranges, ...identity } = SAVED;
    checkSaved(readSaved(directory)!, { ...identity, configSHA256: SHA });
  });

  test("beyond the cap is refused before it is read", () => {
    const file = resumePath(directory);
    fs.writeFileSync(file, "");
    fs.truncateSync(file, 8 * 1024 * 1024 + 1);
    expect(damaged).toThrow(/cap|8388608/);
    fs.truncateSync(file, 8 * 1024 * 1024);
    expect(damaged).not.toThrow(/cap|8388608/);
  });

  const [first] = SAVED.completedRanges;
  test.each<[string, unknown]>([
    ["no JSON", "{"],
    ["another schema", { ...SAVED, schema: 2 }],
    ["no repository", { ...SAVED, repoID: "" }],
    ["a commit that is none", { ...SAVED, resolvedCommit: "z".repeat(40) }],
    ["a short digest", { ...SAVED, planFingerprint: "a" }],
    ["no bytes in all", { ...SAVED, totalSourceBytes: 0 }],
    ["a part twice", { ...SAVED, completedRanges: [first, first] }],
    ["more bytes than there are", { ...SAVED, totalSourceBytes: 99 }],
    ["a part without bytes", { ...SAVED, completedRanges: [{ ...first, destinationBytes: 0 }] }],
    [
      "a number beyond 2^53",
      JSON.stringify(SAVED).replace(
        '"destinationBytes":80',
        '"destinationBytes":18446744073709551615',
      ),
    ],
    ["a link", undefined],
  ])("with %s is damaged", (_, json) => {
    if (json === undefined) fs.symlinkSync("/etc/hostname", resumePath(directory));
    else put(json);
    const isLink = json === undefined;
    expect(damaged).toThrow(
      expect.objectContaining({ code: isLink ? "format.path" : "install.state" }),
    );
  });

  const { schema: _schema, completedRanges: _ranges, ...identity } = SAVED;
  test.each(Object.keys(identity) as (keyof typeof identity)[])(
    "is of its own %s and no other",
    (key) => {
      const other = key === "totalSourceBytes" ? 7 : "x";
      expect(() => checkSaved(SAVED, { ...identity, [key]: other })).toThrow(
        new RegExp(`another source: its ${key} is `),
      );
    },
  );
});
