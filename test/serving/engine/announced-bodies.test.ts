import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { AnnouncedBodies } from '../../../serving/engine/announced-bodies.ts';

test('a body is new for 250 to 500 ms, then old until it arrives', () => {
  const steps = fc.array(
    fc.record({ waitMs: fc.nat({ max: 600 }), arrives: fc.option(fc.nat({ max: 20 })) }),
    { maxLength: 100 },
  );
  fc.assert(
    fc.property(fc.nat({ max: 1_000 }), steps, (startMs, taken) => {
      const bodies = new AnnouncedBodies();
      const open: { period: number; sinceMs: number }[] = [];
      let nowMs = startMs;
      for (const { waitMs, arrives } of taken) {
        nowMs += waitMs;
        const [arrived] = arrives === null ? [] : open.splice(arrives, 1);
        if (arrived === undefined) open.push({ period: bodies.add(nowMs), sinceMs: nowMs });
        else bodies.remove(arrived.period, nowMs);
        const [countNew, countOld] = [bodies.countNew(nowMs), bodies.countOld(nowMs)];
        assert.equal(countNew + countOld, open.length);
        assert.ok(countNew >= open.filter(({ sinceMs }) => nowMs - sinceMs < 250).length);
        assert.ok(countOld >= open.filter(({ sinceMs }) => nowMs - sinceMs >= 500).length);
      }
    }),
  );
});
