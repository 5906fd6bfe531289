/** The ops of a pipeline in the console: their counts, and their names as text. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Op, type OpValues, RequestOp, ResponseOp } from '../../serving/pipeline/index.ts';
import { servePipeline } from '../serving/support/served-pipeline.ts';
import { ConsolePage, SKIP, startBrowser } from './support/browser.ts';

class PassOp extends Op {
  override async preprocess(inputs: Record<string, OpValues>) {
    return Object.values(inputs)[0] ?? {};
  }
}

interface OpState {
  readonly name: string;
  readonly stage: number;
  readonly inputs: readonly string[];
  readonly requests: number;
  readonly running: number;
  readonly queued: number;
}

const HOSTILE = '<img src=x onerror=1>';

test('the console shows the ops of a pipeline with their counts', { skip: SKIP }, async (t) => {
  const request = new RequestOp();
  const left = new PassOp({ name: 'left', inputs: [request] });
  const right = new PassOp({ name: HOSTILE, inputs: [request] });
  const join = new PassOp({ name: 'join', inputs: [left, right] });
  const module = { name: 'toy', ops: new ResponseOp({ inputs: [join] }) };
  const { address } = await servePipeline(t, module);
  const url = `http://${address}`;
  for (let i = 0; i < 3; i++) {
    const body = JSON.stringify({ key: ['x'], value: ['1'] });
    const response = await fetch(`${url}/toy/prediction`, { method: 'POST', body });
    const reply = (await response.json()) as { readonly err_no: number };
    assert.equal(reply.err_no, 0, JSON.stringify(reply));
  }
  const snapshot = await (await fetch(`${url}/v1/console/snapshot`)).json();
  const { views, state } = snapshot as {
    views: readonly string[];
    state: { pipeline: { name: string; ops: readonly OpState[] } };
  };
  assert.ok(views.includes('pipeline'));
  const { name, ops } = state.pipeline;
  assert.equal(name, 'toy');
  assert.deepEqual(
    ops.map((op) => [op.name, op.stage, op.requests, op.running, op.queued]).toSorted(),
    [
      [HOSTILE, 1, 3, 0, 0],
      ['join', 2, 3, 0, 0],
      ['left', 1, 3, 0, 0],
    ],
  );
  assert.deepEqual(ops.find((op) => op.name === 'join')?.inputs.toSorted(), [HOSTILE, 'left']);
  assert.deepEqual(ops.find((op) => op.name === 'left')?.inputs, []);
  const browser = await startBrowser(t);
  const console = await ConsolePage.open(browser, url, { width: 400, dark: true });
  await console.show('pipeline');
  for (const op of ['request', 'left', HOSTILE, 'join', 'response']) {
    await console.page.locator(`[data-op="${op}"]`).waitFor();
  }
  assert.equal(await console.page.locator('path.edge').count(), 5);
  assert.equal(await console.page.locator('img').count(), 0);
  assert.equal(await console.overflow(), 0);
  await console.close();
});
