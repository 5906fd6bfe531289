/**
 * Rules on the addresses of callers: which may call, and which are proxies whose `x-forwarded-for`
 * is believed.
 */
import { BlockList, isIP } from 'node:net';
import { CubeError } from '../core/errors.ts';

/** Hops that are read from `x-forwarded-for`; more are suspicious. */
const HOPS_MAX = 32;
const FORWARDED_CHARS_MAX = 2048;

export interface AddressRulesOptions {
  /** Addresses and ranges (10.0.0.0/8). Default: all. */
  readonly allowed?: readonly string[] | undefined;
  /** Default: none. */
  readonly trustedProxies?: readonly string[] | undefined;
}

export class AddressRules {
  readonly #allowed: BlockList | undefined;
  readonly #proxies: BlockList;

  /** @throws CubeError INVALID_ARGUMENT */
  constructor({ allowed, trustedProxies = [] }: AddressRulesOptions) {
    this.#allowed = allowed && toBlockList(allowed);
    this.#proxies = toBlockList(trustedProxies);
  }

  /** Whether a connection is refused at once: neither an allowed caller nor a trusted proxy. */
  refusesPeer(address: string | undefined): boolean {
    return !this.allows(address) && !includes(this.#proxies, address);
  }

  allows(address: string | undefined): boolean {
    return this.#allowed === undefined || includes(this.#allowed, address);
  }

  /**
   * The address of the client. Behind trusted proxies it is the last one in `x-forwarded-for` that
   * is not a trusted proxy itself: a client can write whatever it wants before that one.
   * @returns undefined when the header does not tell: never the proxy's own address, which may be
   *   allowed where the client's is not
   */
  findClient(peer: string | undefined, forwardedFor: string | undefined): string | undefined {
    if (forwardedFor === undefined || !includes(this.#proxies, peer)) return peer;
    const hops = forwardedFor.slice(-FORWARDED_CHARS_MAX).split(',');
    // The first one may be the rest of an address.
    const isCut = forwardedFor.length > FORWARDED_CHARS_MAX || hops.length > HOPS_MAX;
    let client = peer;
    for (const hop of hops
      .slice(isCut ? 1 : 0)
      .slice(-HOPS_MAX)
      .reverse()) {
      client = parseHop(hop);
      if (!includes(this.#proxies, client)) return client;
    }
    return isCut ? undefined : client;
  }
}

/** Some proxies add the port: `10.0.0.7:5000`, `[2001:db8::1]:5000`. */
function parseHop(hop: string): string | undefined {
  const text = hop.trim();
  const [, bracketed, plain] = /^(?:\[([^\]]*)\](?::\d+)?|([\d.]+):\d+)$/.exec(text) ?? [];
  const address = bracketed ?? plain ?? text;
  return isIP(address) === 0 ? undefined : address;
}

/** @throws CubeError INVALID_ARGUMENT */
export function checkAddressRange(text: string): string {
  toBlockList([text]);
  return text;
}

function toBlockList(ranges: readonly string[]): BlockList {
  const list = new BlockList();
  for (const range of ranges) {
    const [address = '', bits] = range.split('/');
    const family = isIP(address);
    const bitsMax = family === 4 ? 32 : 128;
    const prefix = bits === undefined ? bitsMax : /^\d{1,3}$/.test(bits) ? Number(bits) : -1;
    if (family === 0 || prefix < 0 || prefix > bitsMax || range.split('/').length > 2) {
      const shown = JSON.stringify(range.slice(0, 60));
      throw new CubeError(
        'INVALID_ARGUMENT',
        `expected an IP address or a range such as 10.0.0.0/8, got ${shown}`,
      );
    }
    list.addSubnet(address, prefix, family === 4 ? 'ipv4' : 'ipv6');
  }
  return list;
}

function includes(list: BlockList, address: string | undefined): boolean {
  if (address === undefined) return false;
  // An IPv4 caller of a port that listens on IPv6.
  const plain = address.replace(/^::ffff:(?=\d+\.)/i, '').replace(/%.*$/, '');
  const family = isIP(plain);
  return family !== 0 && list.check(plain, family === 4 ? 'ipv4' : 'ipv6');
}
