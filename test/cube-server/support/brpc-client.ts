/**
 * Calls servers over baidu_std as brpc's clients do: round robin over the servers, one connection
 * to each, and the rules of its default retry policy (retry_policy.cpp, controller.cpp,
 * socket.cpp).
 */
import { connect } from 'node:net';
import { CubeError } from '../../../lib/core/errors.ts';
import { type CallResult, Channel } from '../../../lib/rpc/channel.ts';
import { DICT_METHOD, DICT_SERVICE } from '../../../proto/dict.ts';
import { WireWriter } from '../../../proto/wire.ts';

/** Numbers that brpc retries, of those that a server sends: EHOSTDOWN, ELOGOFF, ELIMIT, … */
const RETRIED_NUMBERS: ReadonlySet<number> = new Set([112, 1011, 2003, 2004]);
const ELOGOFF = 2003;
const RETRY_MAX = 3;
const TIMEOUT_MS = 60_000;
/** brpc: 3 s. */
const HEALTH_CHECK_MS = 20;
const NO_BYTES = new Uint8Array(0);

/** A server as a client of brpc sees it. */
class Peer {
  readonly address: string;
  channel: Channel;
  /** A call was answered with ELOGOFF: no calls until the connection is closed and opened again. */
  isLoggedOff = false;
  /** The connection failed: no calls until a health check can connect. */
  isFailed = false;

  constructor(address: string) {
    this.address = address;
    this.channel = new Channel(address);
  }
}

export class BrpcClient {
  readonly #peers: readonly Peer[];
  #next = 0;
  #isClosed = false;
  /** Calls that were sent again, by the number that caused it; 0: the connection failed. */
  readonly retries: Map<number, number> = new Map<number, number>();

  constructor(addresses: readonly string[]) {
    this.#peers = addresses.map((address) => new Peer(address));
  }

  /** @throws CubeError what brpc reports to its caller */
  async seek(keys: readonly bigint[]): Promise<CallResult> {
    const writer = new WireWriter();
    for (const key of keys) writer.uint(1, key);
    const payload = writer.finish();
    const tried = new Set<Peer>();
    for (;;) {
      const peer = this.#pick(tried);
      if (peer === undefined) throw new CubeError('UNAVAILABLE', 'EHOSTDOWN: no server is left');
      tried.add(peer);
      const { channel } = peer;
      try {
        return await channel.call(DICT_SERVICE, DICT_METHOD, payload, NO_BYTES, TIMEOUT_MS);
      } catch (thrown) {
        const error = CubeError.from(thrown);
        const isConnectionFailure = error.code === 'UNAVAILABLE';
        const number = isConnectionFailure ? 0 : error.status.brpc;
        if (isConnectionFailure) this.#fail(peer, channel);
        if (number === ELOGOFF) this.#logOff(peer, channel);
        if (!isConnectionFailure && !RETRIED_NUMBERS.has(number)) throw error;
        if (tried.size > RETRY_MAX) throw error;
        this.retries.set(number, (this.retries.get(number) ?? 0) + 1);
      }
    }
  }

  close(): void {
    this.#isClosed = true;
    for (const { channel } of this.#peers) channel.close();
  }

  /** A usable server that was not tried yet, if there is one. */
  #pick(tried: ReadonlySet<Peer>): Peer | undefined {
    const usable = this.#peers.filter(({ isFailed, isLoggedOff }) => !isFailed && !isLoggedOff);
    const untried = usable.filter((peer) => !tried.has(peer));
    const candidates = untried.length > 0 ? untried : usable;
    return candidates[this.#next++ % candidates.length];
  }

  #logOff(peer: Peer, channel: Channel): void {
    if (peer.channel !== channel || peer.isLoggedOff) return;
    peer.isLoggedOff = true;
    const check = (): void => {
      if (peer.channel !== channel) return;
      if (!channel.isConnected) this.#fail(peer, channel);
      else if (!this.#isClosed) setTimeout(check, HEALTH_CHECK_MS);
    };
    check();
  }

  #fail(peer: Peer, channel: Channel): void {
    if (peer.channel !== channel || peer.isFailed) return;
    peer.isFailed = true;
    channel.close();
    this.#checkHealth(peer);
  }

  #checkHealth(peer: Peer): void {
    if (this.#isClosed) return;
    const { host, port } = splitAddress(peer.address);
    const socket = connect(port, host);
    socket.once('connect', () => {
      socket.destroy();
      peer.channel = new Channel(peer.address);
      peer.isFailed = false;
      peer.isLoggedOff = false;
    });
    socket.once('error', () => setTimeout(() => this.#checkHealth(peer), HEALTH_CHECK_MS));
  }
}

function splitAddress(address: string): { host: string; port: number } {
  const at = address.lastIndexOf(':');
  return { host: address.slice(0, at), port: Number(address.slice(at + 1)) };
}
