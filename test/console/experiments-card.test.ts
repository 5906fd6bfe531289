/** Experiments in the console of a serving process, in a browser. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import type { Experiment } from '../../lib/core/experiment.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { BUNDLE, ToyBundle } from '../serving/support/toy-bundle.ts';
import { startLocal } from '../serving/support/toy-service.ts';
import { ConsolePage, SKIP, startBrowser } from './support/browser.ts';

const HOSTILE = '<img src=x onerror="document.title=1">';

function makeLayout(weights: readonly [number, number]): string {
  const [plain, wide] = weights;
  const variants = [
    { name: 'plain', weight: plain },
    { name: 'wide', weight: wide, version: '9' },
  ];
  return JSON.stringify({ experiments: [{ name: 'layout', model: BUNDLE, variants }] });
}

test('Live shows what runs, who started it, and changes', { skip: SKIP }, async (t) => {
  const file = join(temporaryFolder(t), 'traffic.yaml');
  writeFileSync(file, '{}');
  const toy = new ToyBundle({ version: '1', seed: 2 });
  const { serving, toys } = await startLocal(t, [toy], ['--traffic-file', file]);
  const browser = await startBrowser(t);
  const console = await ConsolePage.open(browser, serving.url, { width: 400 });
  const { page } = console;
  await console.show('live');
  const card = page.locator('[data-card=experiments]');
  assert.equal(await card.count(), 0);

  writeFileSync(file, makeLayout([3, 1]));
  const rows = card.locator('tbody tr');
  const readRow = async (i: number): Promise<string[]> => rows.nth(i).locator('td').allInnerTexts();
  await rows.nth(1).waitFor();
  assert.deepEqual(await readRow(0), [
    `layout (${BUNDLE})`,
    'plain',
    '75 %',
    'as without the experiment',
  ]);
  const [name, variant, share, answers = ''] = await readRow(1);
  assert.deepEqual([name, variant, share], ['', 'wide', '25 %']);
  assert.match(answers, /^version 9\s*not loaded$/);

  writeFileSync(file, makeLayout([1, 1]));
  await rows.filter({ hasText: 'wide' }).filter({ hasText: '50 %' }).waitFor();

  const ranking: Experiment = {
    name: 'ranking',
    model: BUNDLE,
    salt: 'ranking',
    variants: ['control', 'new'].map((text) => ({ name: text, weight: 1, target: {} })),
    overrides: new Map(),
  };
  const log = toys.repository.experimentLog(BUNDLE);
  const action = { by: 'ann', reason: HOSTILE };
  const first = await log.append(undefined, { experiments: [ranking], ...action });
  await card
    .getByText(`${BUNDLE}: entry 1,`)
    .filter({ hasText: `by ann: ${HOSTILE}` })
    .waitFor();
  assert.equal(await rows.count(), 4);
  assert.equal(await page.locator('img').count(), 0);
  assert.equal(await console.overflow(), 0);

  // The name of an experiment that the file has: the log says why its entry does not apply.
  const taken = { ...ranking, name: 'layout' };
  await log.append(first, { experiments: [taken], by: 'ben', reason: 'a mistake' });
  await console.show('problems');
  await page.getByRole('row').filter({ hasText: 'the name layout is used twice' }).waitFor();
  await console.show('live');
  assert.equal(await rows.count(), 4);

  await console.close();
});
