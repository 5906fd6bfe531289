/**
 * A third of the fleet fails under virtual time: the others do their work, and no retry storm
 * follows.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { CallPolicy } from '../../lib/client/call-policy.ts';
import type { ClientCounters } from '../../lib/client/client-stats.ts';
import {
  createRandom,
  EventClock,
  SERVER_RATE,
  type ServerState,
  SimulatedClient,
  SimulatedServer,
} from './support/simulated-fleet.ts';

const SERVERS = 9;
const FAILING = 3;
const CLIENTS = 3;
const DEADLINE_MS = 300;
/** What the servers that do not fail can serve in a second. */
const HEALTHY_RATE = (SERVERS - FAILING) * SERVER_RATE;
/** The time between a change of the fleet and a measurement. */
const SETTLE_MS = 3_000;

class Simulation {
  readonly servers: readonly SimulatedServer[];
  readonly clients: readonly SimulatedClient[];
  readonly #clock = new EventClock();
  readonly #random: () => number;

  constructor(t: TestContext, policy: CallPolicy, seed: number) {
    this.#random = createRandom(seed);
    t.mock.method(Math, 'random', this.#random);
    this.servers = Array.from(
      { length: SERVERS },
      () => new SimulatedServer(this.#clock, this.#random),
    );
    this.clients = Array.from(
      { length: CLIENTS },
      () => new SimulatedClient(this.#clock, this.servers, policy),
    );
  }

  setFailing(state: ServerState): void {
    for (const server of this.servers.slice(0, FAILING)) server.state = state;
  }

  /**
   * Sends calls at a rate, as independent callers do.
   * @returns calls answered in a second, their share of the calls, and requests for each call
   */
  async run(
    rate: number,
    durationMs: number,
  ): Promise<{ goodput: number; share: number; attempts: number }> {
    const startMs = this.#clock.nowMs();
    const endMs = startMs + durationMs;
    const answered = this.#sum('answered');
    const [calls, received] = [this.#count('calls'), this.#sumReceived()];
    const send = (): void => {
      if (this.#clock.nowMs() >= endMs) return;
      const client = this.clients[Math.floor(this.#random() * CLIENTS)]!;
      void client.call(DEADLINE_MS);
      this.#clock.after((-Math.log(1 - this.#random()) * 1_000) / rate, send);
    };
    send();
    await this.#clock.runUntil(endMs);
    const good = this.#sum('answered') - answered;
    const sent = this.#count('calls') - calls;
    const attempts = (this.#sumReceived() - received) / sent;
    return { goodput: (good * 1_000) / durationMs, share: good / sent, attempts };
  }

  close(): void {
    for (const client of this.clients) client.close();
  }

  #count(name: keyof ClientCounters): number {
    return this.clients.reduce((sum, { counters }) => sum + counters[name], 0);
  }

  #sum(name: 'answered'): number {
    return this.clients.reduce((sum, client) => sum + client[name], 0);
  }

  #sumReceived(): number {
    return this.servers.reduce((sum, { received }) => sum + received, 0);
  }
}

const FAILURES: readonly ServerState[] = ['dead', 'hanging', 'flaky', 'slow'];

for (const [index, state] of FAILURES.entries()) {
  test(`a third of the servers is ${state}: the others serve what they can bear`, async (t) => {
    const simulation = new Simulation(t, {}, index + 1);
    const rate = 0.8 * HEALTHY_RATE;
    await simulation.run(rate, SETTLE_MS);
    simulation.setFailing(state);
    await simulation.run(rate, SETTLE_MS);
    const { share, attempts } = await simulation.run(rate, 8_000);
    simulation.close();
    assert.ok(share >= 0.95, `${share} of the calls were answered`);
    assert.ok(attempts <= 1.2, `${attempts} requests for each call`);
  });

  test(`a third of the servers is ${state}: overload is refused, not queued`, async (t) => {
    const simulation = new Simulation(t, { concurrencyLimit: 'refuse' }, index + 11);
    // As much as all servers can serve, half more than those that do not fail.
    const rate = SERVERS * SERVER_RATE;
    await simulation.run(0.6 * rate, SETTLE_MS);
    simulation.setFailing(state);
    await simulation.run(rate, SETTLE_MS);
    const { goodput, attempts } = await simulation.run(rate, 8_000);
    assert.ok(goodput >= 0.95 * HEALTHY_RATE, `${goodput} of ${HEALTHY_RATE}`);
    assert.ok(attempts <= 1.2, `${attempts} requests for each call`);
    simulation.setFailing('healthy');
    await simulation.run(0.8 * rate, 3 * SETTLE_MS);
    const after = await simulation.run(0.8 * rate, 4_000);
    simulation.close();
    assert.ok(after.share >= 0.95, `${after.share} of the calls were answered after the recovery`);
  });
}
