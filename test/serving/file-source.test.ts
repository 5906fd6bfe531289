/** One ONNX file that is served: which changes of it and of its external data cause a reload. */
import assert from 'node:assert/strict';
import { renameSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { FileSource } from '../../serving/models/file-source.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

/** Puts a file in the place of another one, as rsync does, with the time of the other one. */
function replaceFile(path: string, text: string, { mtime }: { mtime: Date }): void {
  writeFileSync(`${path}.new`, text);
  utimesSync(`${path}.new`, mtime, mtime);
  renameSync(`${path}.new`, path);
}

test('a change of the graph or of its external data is a new version', async (t) => {
  const path = join(temporaryFolder(t), 'model.onnx');
  const dataPath = `${path}.data`;
  const source = new FileSource(path);
  const poll = async (): Promise<string | undefined> => (await source.read())?.pointer;
  const readData = (): string | undefined => {
    const data = source.readModel().data.get('model.onnx.data');
    return data && Buffer.from(data).toString();
  };
  assert.equal(await poll(), undefined);
  writeFileSync(path, 'graph 1');
  assert.deepEqual([await poll(), await poll()], ['1', '1']);
  assert.equal(readData(), undefined);

  // The graph arrives first: its version has the old weights until the data has arrived too.
  writeFileSync(dataPath, 'weights 1');
  assert.deepEqual([await poll(), await poll()], ['1', '2']);
  replaceFile(path, 'graph 2', statSync(path));
  assert.deepEqual([await poll(), await poll()], ['2', '3']);
  replaceFile(dataPath, 'weights 2', statSync(dataPath));
  assert.deepEqual([await poll(), await poll(), await poll()], ['3', '4', '4']);
  assert.equal(readData(), 'weights 2');

  rmSync(dataPath);
  assert.deepEqual([await poll(), await poll()], ['4', '5']);
  rmSync(path);
  assert.deepEqual([await poll(), await poll()], ['5', '5'], 'the file is being replaced');
});
