/** The circuit breaker, in virtual time. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  CircuitBreaker,
  PROBE_INTERVAL_MS,
  SILENCE_MS_MIN,
} from '../../lib/client/circuit-breaker.ts';
import { VirtualClock } from './support/virtual-clock.ts';

const PROBE_TIMEOUT_MS = 1_000;

/** A server that answers at once, or hangs. */
class Server {
  isHanging = false;
  probes = 0;
  readonly breaker: CircuitBreaker;
  readonly #clock: VirtualClock;

  constructor(clock: VirtualClock) {
    this.#clock = clock;
    this.breaker = new CircuitBreaker(clock);
  }

  /** Sends a call that is waited for up to `timeoutMs`. */
  async call(timeoutMs: number): Promise<void> {
    const { breaker } = this;
    const clock = this.#clock;
    breaker.recordCall(clock.nowMs());
    if (!this.isHanging) {
      breaker.recordAnswer();
      return;
    }
    await clock.sleep(timeoutMs);
    breaker.recordNoAnswer(clock.nowMs(), () => this.#probe());
  }

  #probe(): Promise<void> {
    this.probes++;
    return this.call(PROBE_TIMEOUT_MS);
  }
}

test('it opens when a server has answered nothing for 200 ms, whatever the deadlines', async () => {
  for (const timeoutMs of [5, 30, 250, 1_000]) {
    const clock = new VirtualClock();
    const server = new Server(clock);
    server.isHanging = true;
    for (let atMs = 0; atMs < SILENCE_MS_MIN; atMs += 10) {
      assert.equal(server.breaker.isOpen, false, `${timeoutMs} ms, after ${atMs} ms`);
      void server.call(timeoutMs);
      await clock.advance(10);
    }
    void server.call(timeoutMs);
    await clock.advance(timeoutMs);
    assert.equal(server.breaker.isOpen, true, `${timeoutMs} ms`);
    server.breaker.stop();
  }
});

test('one unanswered call among answered ones, or a short pause, does not open it', async () => {
  const clock = new VirtualClock();
  const server = new Server(clock);
  for (let i = 0; i < 100; i++) {
    server.isHanging = i % 2 === 0;
    void server.call(500);
    await clock.advance(50);
  }
  await clock.advance(10_000);
  assert.deepEqual([server.breaker.isOpen, server.probes], [false, 0]);
});

test('while it is open, probes go on without calls; the first answer closes it', async () => {
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 0, max: 60_000 }), async (hungMs) => {
      const clock = new VirtualClock();
      const server = new Server(clock);
      server.isHanging = true;
      void server.call(SILENCE_MS_MIN);
      await clock.advance(SILENCE_MS_MIN + hungMs);
      assert.equal(server.breaker.isOpen, true);
      const { probes } = server;
      assert.ok(probes >= 1 && probes <= 3 + hungMs / PROBE_INTERVAL_MS, `${probes} probes`);
      server.isHanging = false;
      await clock.advance(PROBE_TIMEOUT_MS + PROBE_INTERVAL_MS);
      assert.equal(server.breaker.isOpen, false);
      assert.ok(server.probes <= probes + 1);
    }),
    { numRuns: 50 },
  );
});

test('a late answer closes it, and a stopped one sends no more probes', async () => {
  const clock = new VirtualClock();
  const server = new Server(clock);
  server.isHanging = true;
  void server.call(SILENCE_MS_MIN);
  await clock.advance(SILENCE_MS_MIN);
  server.breaker.recordAnswer();
  assert.equal(server.breaker.isOpen, false);
  assert.equal(server.breaker.silentMs(clock.nowMs()), 0);
  void server.call(SILENCE_MS_MIN);
  await clock.advance(SILENCE_MS_MIN);
  server.breaker.stop();
  const { probes } = server;
  await clock.advance(20_000);
  assert.equal(server.probes, probes);
});
