import { env } from "../util/env.ts";
import { MferenceError } from "../util/errors.ts";

/**
 * Which addresses an install may talk to. Encrypted ones, and a server on this machine without
 * encryption; never from the public network back into a private one. Sends nothing.
 */
export const HUB = "https://huggingface.co";

/**
 * The address of the Hub or of its mirror.
 *
 * @throws MferenceError "usage.value"
 */
export function hubBase(address: string = env("HF_ENDPOINT") ?? HUB): URL {
  const url = URL.parse(address);
  if (url === null) throw bad(address, "it is no address");
  if (url.username !== "" || url.password !== "") {
    throw bad(redacted(url), "it holds credentials; give a token in HF_TOKEN");
  }
  if (!isAllowed(url)) {
    throw bad(redacted(url), "only https is used, and http on this machine itself");
  }
  return url;
}

/**
 * The user's token, if it may go to a server: to the Hub, or the mirror that the user calls the Hub, and
 * never where others on the line could read it.
 *
 * @throws MferenceError "usage.value" for what cannot be a token, without showing it
 */
export function tokenFor(base: URL): string | undefined {
  const token = env("HF_TOKEN")?.trim();
  const isProxied = (env("http_proxy") ?? env("HTTP_PROXY")) !== undefined;
  if (token === undefined || base.origin !== hubBase().origin) return undefined;
  if (base.protocol === "http:" && isProxied) return undefined;
  if (/^[\x21-\x7e]+$/.test(token)) return token;
  throw new MferenceError("usage.value", "HF_TOKEN holds characters that no token has");
}

function bad(address: string, why: string): MferenceError {
  return new MferenceError("usage.value", `cannot use ${address} as the Hub: ${why}`);
}

function isAllowed(url: URL): boolean {
  return url.protocol === "https:" || isLocalHttp(url);
}

/** A server of this machine, without encryption. */
export function isLocalHttp(url: URL): boolean {
  return url.protocol === "http:" && isLoopback(url.hostname);
}

/** Without query and fragment, where signed addresses hold their secrets. */
export function redacted(url: URL): string {
  return `${url.origin}${url.pathname}`;
}

/**
 * Where a redirect leads.
 *
 * @throws MferenceError "install.remote" when it leads nowhere, or where it must not
 */
export function redirectTarget(location: string | null, from: URL, base: URL): URL {
  const target = location === null ? null : URL.parse(location, from.href);
  if (target === null) throw refused(from, "to no address");
  const isSecure = target.protocol === "https:" || (isLocalHttp(target) && isLocalHttp(base));
  if (!isSecure) throw refused(from, `to ${redacted(target)}, which is not encrypted`);
  if (target.username !== "" || target.password !== "") throw refused(from, "to credentials");
  if (isPrivate(target.hostname) && !isPrivate(base.hostname)) {
    throw refused(from, `to ${target.hostname}, an address of a private network`);
  }
  return target;
}

function refused(from: URL, where: string): MferenceError {
  return new MferenceError("install.remote", `${redacted(from)} redirects ${where}`);
}

function isLoopback(hostname: string): boolean {
  return hostname === "localhost" || hostname === "[::1]" || /^127(\.\d+){3}$/.test(hostname);
}

const PRIVATE_V4 = /^(0|10|127|169\.254|192\.168|172\.(1[6-9]|2\d|3[01]))\./;
const PRIVATE_V6 = /^\[(::|f[cd]|fe[89ab])/;

/** Whether a host, as an address in URL form, belongs to this machine or its own network. */
export function isPrivate(hostname: string): boolean {
  const isLiteral = /^\d+(\.\d+){3}$/.test(hostname);
  return (
    isLoopback(hostname) ||
    /\.(localhost|local|internal)$/.test(hostname) ||
    (isLiteral && PRIVATE_V4.test(hostname)) ||
    PRIVATE_V6.test(hostname)
  );
}
