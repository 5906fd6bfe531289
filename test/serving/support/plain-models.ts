/** Plain models for tests, and a process that serves some. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { FLOAT, floats, model, node, value } from '../../tools/prune-model/support/onnx-builder.ts';
import { ServingProcess } from './serving-process.ts';

/** One copy of each type: an input `in_<type>` and an output `out_<type>`, [batch, 2]. */
export const TYPES: readonly (readonly [number, string, readonly unknown[]])[] = [
  [1, 'FP32', [0.5, -1.25]],
  [2, 'UINT8', [0, 255]],
  [3, 'INT8', [-128, 127]],
  [4, 'UINT16', [1, 65_535]],
  [5, 'INT16', [-32_768, 2]],
  [6, 'INT32', [-2_147_483_648, 3]],
  [7, 'INT64', ['-9223372036854775808', '9007199254740993']],
  [8, 'BYTES', ['', 'é\u{1f600}']],
  [9, 'BOOL', [true, false]],
  [11, 'FP64', [0.1, 1e300]],
  [12, 'UINT32', [4_294_967_295, 0]],
  [13, 'UINT64', ['18446744073709551615', '1']],
];

export const everyType: Uint8Array = model({
  inputs: TYPES.map(([type, name]) => value(`in_${name}`, type, ['batch', 2])),
  outputs: TYPES.map(([type, name]) => value(`out_${name}`, type, ['batch', 2])),
  nodes: TYPES.map(([, name]) => node('Identity', [`in_${name}`], [`out_${name}`])),
});

/** y = factor · x. */
export function multiply(factor: number): Uint8Array {
  return model({
    inputs: [value('x', FLOAT, ['batch', 'n'])],
    outputs: [value('y', FLOAT, ['batch', 'n'])],
    initializers: [floats('factor', [1], [factor])],
    nodes: [node('Mul', ['x', 'factor'], ['y'])],
  });
}

/** Serves ONNX files under the names of the map. */
export async function serve(
  t: TestContext,
  models: Readonly<Record<string, Uint8Array>>,
  flags: readonly string[] = [],
  isProcess = false,
): Promise<{ serving: ServingProcess; folder: string }> {
  const folder = temporaryFolder(t);
  for (const [name, bytes] of Object.entries(models)) {
    writeFileSync(join(folder, `${name}.onnx`), bytes);
  }
  const [only, ...others] = Object.keys(models);
  const list = Object.keys(models).map((name) => `  - model: ${name}.onnx\n    poll-ms: 50\n`);
  const yaml = `port: 0\ntimeout-ms: 30000\nmodels:\n${list.join('')}`;
  writeFileSync(join(folder, 'serving.yaml'), yaml);
  const source =
    others.length === 0
      ? ['--model', join(folder, `${only}.onnx`)]
      : ['--config', join(folder, 'serving.yaml')];
  const serving = await ServingProcess.start(t, [...source, ...flags], { isProcess });
  await serving.waitFor('/readyz', ({ status }) => status === 200);
  return { serving, folder };
}
