/** Every door gives the same scores. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { DOORS } from './door-callers.ts';
import { ToyBundle, toyRows } from './toy-bundle.ts';
import { startLocal } from './toy-service.ts';

const TOLERANCE = 1e-5;

it('scores through every door equal the plain computation', async (t) => {
  const toy = new ToyBundle({ version: '7', seed: 41, wide: true });
  const { serving } = await startLocal(t, [toy]);
  for (const [name, ask] of DOORS) {
    for (const count of [1, 150]) {
      const rows = toyRows(count, count);
      const clicks = await ask(serving, rows);
      assert.equal(clicks.length, rows.length, name);
      rows.forEach((row, i) => {
        const difference = Math.abs(clicks[i]! - toy.score(row)[1]);
        assert.ok(difference < TOLERANCE, `${name}, row ${i}: off by ${difference}`);
      });
    }
  }
  assert.equal(await serving.stop(), 0);
});
