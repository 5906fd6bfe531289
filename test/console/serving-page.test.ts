/** The console of a serving process, in a browser. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Browser } from 'playwright-core';
import type { ServingProcess } from '../serving/support/serving-process.ts';
import { ToyBundle, toTsv, toyRows } from '../serving/support/toy-bundle.ts';
import { startLocal } from '../serving/support/toy-service.ts';
import { ConsolePage, SKIP, startBrowser } from './support/browser.ts';
import { CuttableLine } from './support/cuttable-line.ts';

const FIRST_LOAD_BYTES_MAX = 150_000;
const HOSTILE = '<img src=x onerror="document.title=1">';

test('the first load is small, and its policy lets nothing else run', async (t) => {
  const { serving } = await startLocal(t, [new ToyBundle({ version: '1', seed: 1 })]);
  const page = await fetch(`${serving.url}/console`);
  const html = await page.text();
  const policy = page.headers.get('content-security-policy') ?? '';
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe|https?:|\*/);
  const files = [...html.matchAll(/(?:src|href)="(\/console\/[^"]+)"/g)].map(([, path]) => path);
  assert.equal(files.length, 3, html);
  let bytes = html.length;
  for (const path of [...files, '/v1/console/snapshot']) {
    const response = await fetch(serving.url + path);
    await response.arrayBuffer();
    assert.equal(response.status, 200, path);
    bytes += Number(response.headers.get('content-length'));
  }
  assert.ok(bytes < FIRST_LOAD_BYTES_MAX, `${bytes} bytes`);
  const { status } = await serving.get('/console/..%2f..%2fpackage.json');
  assert.equal(status, 404);
});

async function checkPrediction(browser: Browser, { url }: ServingProcess): Promise<void> {
  const console = await ConsolePage.open(browser, url);
  const { page } = console;
  await console.show('predict');
  await page.getByRole('button', { name: 'Predict' }).click();
  await page.locator('[data-result=version]', { hasText: '7' }).waitFor();
  assert.match(await page.locator('[data-result=probability]').innerText(), /^\d+\.\d\d %$/);
  assert.match(await page.locator('.result').innerText(), /\d hit.*\d unseen.*0 unavailable/s);
  for (const language of ['Python', 'TypeScript', 'curl']) {
    await page.getByRole('button', { name: language }).click();
    await page.locator(`[data-snippet=${language}]`, { hasText: 'toy' }).waitFor();
  }
  await page.locator('input[name=C1]').fill(HOSTILE);
  await page.locator('pre', { hasText: 'onerror' }).waitFor();
  const answered = page.waitForResponse(/predict/);
  await page.getByRole('button', { name: 'Predict' }).click();
  assert.equal((await answered).status(), 200);
  await page.locator('input[name=I1]').fill(HOSTILE);
  await page.getByRole('button', { name: 'Predict' }).click();
  await page.getByRole('alert').filter({ hasText: 'onerror' }).waitFor();
  assert.equal(await page.locator('img').count(), 0);
  assert.equal(await page.title(), `Predict · serving ${new URL(url).host} · Hypercube`);
  await console.close([/400/]);
}

async function checkOldResults(browser: Browser, { url }: ServingProcess): Promise<void> {
  const console = await ConsolePage.open(browser, url);
  const { page } = console;
  await console.show('predict');
  const button = page.getByRole('button', { name: 'Predict' });
  const probability = page.locator('[data-result=probability]');
  const actions: readonly (() => Promise<unknown>)[] = [
    () => page.locator('input[name=C1]').fill('edited'),
    () => page.getByLabel('Example row').selectOption('1'),
    () => page.getByRole('button', { name: 'Clear' }).click(),
  ];
  for (const act of actions) {
    await button.click();
    await probability.waitFor();
    await act();
    await probability.waitFor({ state: 'detached' });
    assert.equal(await page.locator('.field .outcome').count(), 0);
  }
  // An error is removed, too.
  await page.locator('input[name=I1]').fill(HOSTILE);
  await button.click();
  await page.getByRole('alert').waitFor();
  await page.locator('input[name=I1]').fill('1');
  await page.getByRole('alert').waitFor({ state: 'detached' });
  assert.equal(await probability.count(), 0);
  await console.close([/400/]);
}

async function checkInfinity(browser: Browser, { url }: ServingProcess): Promise<void> {
  const console = await ConsolePage.open(browser, url);
  const { page } = console;
  await console.show('predict');
  for (const text of ['1e999', '-Infinity', 'NaN']) {
    await page.locator('input[name=I1]').fill(text);
    await page.getByRole('button', { name: 'Predict' }).click();
    await page.getByRole('alert').filter({ hasText: text }).waitFor();
    assert.equal(await page.locator('[data-result=probability]').count(), 0, text);
  }
  await console.close([/400/]);
}

async function checkNoAnswer(browser: Browser, line: CuttableLine): Promise<void> {
  const console = await ConsolePage.open(browser, line.url);
  const { page } = console;
  await console.show('predict');
  const button = page.getByRole('button', { name: 'Predict' });
  await button.waitFor();
  line.cut();
  await button.click();
  const alerts = page.getByRole('alert');
  await alerts.filter({ hasText: 'does not answer: check that it runs. Trying again' }).waitFor();
  assert.equal(await alerts.count(), 1);
  await line.mend();
  await alerts.waitFor({ state: 'detached' });
  await button.click();
  await page.locator('[data-result=probability]').waitFor();
  await console.close([/ERR_/]);
}

async function checkNarrowTabs(browser: Browser, { url }: ServingProcess): Promise<void> {
  const console = await ConsolePage.open(browser, url, { width: 200 });
  const tab = console.page.getByRole('link', { name: 'Problems' });
  await console.show('problems');
  const { x = 0, width = 0 } = (await tab.boundingBox()) ?? {};
  assert.ok(x >= 0 && width > 0 && x + width <= 200, `${x} to ${x + width}`);
  await console.close();
}

/** What the process answers while all replicas of the shard are down. */
async function checkUnavailableRow(browser: Browser, { url }: ServingProcess): Promise<void> {
  const console = await ConsolePage.open(browser, url);
  const { page } = console;
  const row = { table: 'deep', outcome: 'unavailable', dim: 3, norm: 0, row: [0, 0, 0] };
  const found = { key: '1', hex: '0x1', shard: 1, shardNum: 2, rows: [row] };
  await page.route(/console\/row/, (route) => route.fulfill({ json: found }));
  await console.show('tables');
  await page.locator('[data-lookup] input[name=feature]').fill('a');
  await page.getByRole('button', { name: 'Look up' }).click();
  const shown = page.locator('[data-outcome=unavailable]');
  assert.equal((await shown.innerText()).trim(), 'deep no replica answered');
  assert.equal(await shown.locator('svg').count(), 0);
  await console.close();
}

test('a serving process in a browser', { skip: SKIP }, async (t) => {
  const { serving } = await startLocal(t, [new ToyBundle({ version: '7', seed: 2 })]);
  await serving.postTsv(toTsv(toyRows(3)));
  const browser = await startBrowser(t);

  await t.test('Predict shows probability, version and outcomes, and the call as code', () =>
    checkPrediction(browser, serving),
  );
  await t.test('Predict removes a result when the fields change', () =>
    checkOldResults(browser, serving),
  );
  await t.test('Predict refuses numbers that are not finite', () =>
    checkInfinity(browser, serving),
  );
  await t.test('Predict says once that the process does not answer', async () =>
    checkNoAnswer(browser, await CuttableLine.start(t, serving.url)),
  );
  await t.test('the tab of the view is visible in a narrow window', () =>
    checkNarrowTabs(browser, serving),
  );
  await t.test('Tables shows nothing of a row that no replica answered', () =>
    checkUnavailableRow(browser, serving),
  );

  await t.test('Live moves with the requests', async () => {
    const console = await ConsolePage.open(browser, serving.url);
    const { page } = console;
    await console.show('live');
    await page.locator('canvas').first().waitFor();
    const rate = page.locator('[data-tile=rate] b');
    const isMoving = async (): Promise<boolean> => Number(await rate.innerText()) > 0;
    while (!(await isMoving())) await serving.postTsv(toTsv(toyRows(2)));
    await page.locator('[data-tile=version]', { hasText: '7' }).waitFor();
    await console.close();
  });

  await t.test(
    'every view fits 400 pixels, in both themes, and is reached by keyboard',
    async () => {
      for (const dark of [false, true]) {
        const console = await ConsolePage.open(browser, serving.url, { width: 400, dark });
        const { page } = console;
        for (const view of ['live', 'predict', 'tables', 'problems']) {
          await console.show(view);
          assert.equal(await console.overflow(), 0, view);
        }
        const background = await page.evaluate('getComputedStyle(document.body).backgroundColor');
        assert.equal(background, dark ? 'rgb(16, 20, 27)' : 'rgb(245, 246, 248)');
        await page.getByRole('link', { name: 'Live' }).focus();
        await page.keyboard.press('Tab');
        await page.keyboard.press('Enter');
        await page.getByRole('heading', { name: 'Predict', level: 2 }).waitFor();
        await console.close();
      }
    },
  );
});
