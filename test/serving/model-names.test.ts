/** A model is served by a name that is not the name of its bundle. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ROWS, ServedToy } from './support/served-toy.ts';
import { BUNDLE, toTsv } from './support/toy-bundle.ts';

test('the only model is found without its name, also with a version or a label', async (t) => {
  const served = await ServedToy.start(t, ({ folder }) => {
    const model = { repository: `${folder}/repo`, bundle: BUNDLE, store: 'memory' as const };
    return { keyFile: undefined as never, models: [{ ...model, name: 'ads', instances: 1 }] };
  });
  for (const query of ['', '?version=1', '?label=stable', '?model=ads&version=1']) {
    const response = await served.fetch(`/v1/ctr:predict${query}`, {
      method: 'POST',
      headers: { 'content-type': 'text/tab-separated-values' },
      body: toTsv(ROWS),
    });
    assert.equal(response.status, 200, `${query}: ${await response.text()}`);
  }
});
