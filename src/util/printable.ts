/** What may reach a terminal of a text that somebody else wrote. Knows no terminal. */

/**
 * A text whose control characters, all but line feed and tab, are visible marks: they could move the
 * cursor, set the title or worse.
 */
export function printable(text: string): string {
  // oxlint-disable-next-line no-control-regex -- control characters are what is looked for
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "\ufffd");
}
