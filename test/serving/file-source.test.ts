/** One ONNX file that is served: which changes of it and of its external data cause a reload. */
import assert from 'node:assert/strict';
import { mkdirSync, renameSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { FileSource } from '../../serving/models/file-source.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import {
  externalFloats,
  FLOAT,
  model,
  node,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';

/** Puts a file in the place of another one, as rsync does, with the time of the other one. */
function replaceFile(path: string, content: string | Uint8Array, { mtime }: { mtime: Date }): void {
  writeFileSync(`${path}.new`, content);
  utimesSync(`${path}.new`, mtime, mtime);
  renameSync(`${path}.new`, path);
}

test('a change of the graph or of its external data is a new version', async (t) => {
  const path = join(temporaryFolder(t), 'model.onnx');
  const dataPath = join(path, '..', 'weights.bin');
  const graph = (name: string, location = 'weights.bin'): Uint8Array =>
    model({
      inputs: [value(name, FLOAT, [1])],
      outputs: [value('y', FLOAT, [1])],
      nodes: [node('Add', [name, 'w'], ['y'])],
      initializers: [externalFloats('w', [1], location)],
    });
  const source = new FileSource(path);
  const poll = async (): Promise<string | undefined> => (await source.read())?.pointer;
  const readData = async (): Promise<string> => {
    const { data } = await source.readModel();
    return [...data].map(([name, bytes]) => `${name}: ${Buffer.from(bytes)}`).join();
  };
  assert.equal(await poll(), undefined);
  writeFileSync(path, graph('a'));
  assert.deepEqual([await poll(), await poll()], ['1', '1']);
  const missing = /model\.onnx has tensors in the file "weights\.bin", which does not exist/;
  await assert.rejects(readData, missing);
  assert.deepEqual([await poll(), await poll()], ['1', '1'], 'reading changes nothing');

  // The graph arrives first: its version cannot be loaded until its data has arrived too.
  writeFileSync(dataPath, 'weights 1');
  assert.deepEqual([await poll(), await poll()], ['1', '2']);
  replaceFile(path, graph('b'), statSync(path));
  assert.deepEqual([await poll(), await poll()], ['2', '3']);
  replaceFile(dataPath, 'weights 2', statSync(dataPath));
  assert.deepEqual([await poll(), await poll(), await poll()], ['3', '4', '4']);
  assert.equal(await readData(), 'weights.bin: weights 2');
  replaceFile(path, graph('c', 'other.bin'), statSync(path));
  assert.deepEqual([await poll(), await poll()], ['4', '5']);
  await assert.rejects(readData, /in the file "other\.bin", which does not exist/);
  replaceFile(dataPath, 'weights 3', statSync(dataPath));
  assert.deepEqual([await poll(), await poll()], ['5', '5'], 'the new graph does not need it');
  writeFileSync(join(path, '..', 'other.bin'), 'weights 4');
  assert.deepEqual([await poll(), await poll()], ['5', '6']);
  assert.equal(await readData(), 'other.bin: weights 4');

  rmSync(join(path, '..', 'other.bin'));
  assert.deepEqual([await poll(), await poll()], ['6', '7']);
  rmSync(path);
  assert.deepEqual([await poll(), await poll()], ['7', '7'], 'the file is being replaced');
});

test('data in other folders is not read, and the model still counts', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'secret'), 'secret');
  mkdirSync(join(folder, 'models'));
  const path = join(folder, 'models', 'model.onnx');
  const source = new FileSource(path);
  for (const location of ['../secret', join(folder, 'secret'), '.', '..', 'a\0b']) {
    const bytes = model({
      inputs: [value('x', FLOAT, [1])],
      outputs: [value('y', FLOAT, [1])],
      nodes: [node('Add', ['x', 'w'], ['y'])],
      initializers: [externalFloats('w', [1], location)],
    });
    writeFileSync(path, bytes);
    await assert.rejects(source.readModel(), /must be a name of a file beside the model/);
    await source.read();
  }
});
