/**
 * The nodes of Redis as lookups see them: one circuit breaker for each, shared by all lookups. A
 * node that answers nothing is only probed, so that lookups do not wait for it again and again.
 */
import { CircuitBreaker, type Probe } from '../../lib/client/circuit-breaker.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import { isErrorReply, type RedisArgument, type RedisConnection } from './redis-connection.ts';
import { MARKER } from './redis-layout.ts';

/** One command to the node that has a partition. */
export class NodeCommand {
  readonly #nodes: RedisNodes;
  readonly #partition: string;
  readonly #breaker: CircuitBreaker;
  #isWaiting = false;

  constructor(nodes: RedisNodes, partition: string, breaker: CircuitBreaker) {
    this.#nodes = nodes;
    this.#partition = partition;
    this.#breaker = breaker;
  }

  /** @throws CubeError UNAVAILABLE, at once when the node's circuit is open */
  async send<T>(args: RedisArgument[]): Promise<T> {
    const { connection, clock } = this.#nodes;
    if (this.#breaker.isOpen) {
      const text = 'no answers; nothing is sent until a probe is answered';
      throw new CubeError('UNAVAILABLE', `redis ${connection.name}: ${text}`);
    }
    this.#breaker.recordCall(clock.nowMs());
    this.#isWaiting = true;
    try {
      const reply = await connection.send<T>(this.#partition, true, args);
      this.#breaker.recordAnswer();
      return reply;
    } catch (error) {
      if (isErrorReply(error)) this.#breaker.recordAnswer();
      else this.#recordNoAnswer();
      throw error;
    } finally {
      this.#isWaiting = false;
    }
  }

  /** Records that nobody waits for the reply any more. No effect after the reply. */
  expire(): void {
    if (this.#isWaiting) this.#recordNoAnswer();
  }

  #recordNoAnswer(): void {
    const { connection, clock } = this.#nodes;
    const probe: Probe = async () => {
      try {
        await connection.send(this.#partition, true, ['HEXISTS', this.#partition, MARKER]);
        this.#breaker.recordAnswer();
      } catch (error) {
        if (isErrorReply(error)) this.#breaker.recordAnswer();
      }
    };
    this.#breaker.recordNoAnswer(clock.nowMs(), probe);
  }
}

export class RedisNodes {
  readonly connection: RedisConnection;
  readonly clock: Clock;
  /** By address. */
  readonly #breakers = new Map<string, CircuitBreaker>();

  constructor(connection: RedisConnection, clock: Clock = systemClock) {
    this.connection = connection;
    this.clock = clock;
  }

  /** Nodes that are only probed. */
  get openCircuits(): number {
    return [...this.#breakers.values()].filter(({ isOpen }) => isOpen).length;
  }

  createCommand(partition: string, hashSlot: number): NodeCommand {
    const address = this.connection.findNode(hashSlot);
    let breaker = this.#breakers.get(address);
    if (breaker === undefined) {
      breaker = new CircuitBreaker(this.clock);
      this.#breakers.set(address, breaker);
    }
    return new NodeCommand(this, partition, breaker);
  }

  /** Ends the probes. */
  close(): void {
    for (const breaker of this.#breakers.values()) breaker.stop();
  }
}
