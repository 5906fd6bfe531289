/** Runs every command of docs/your-own-model.md, in order; only folder and port differ. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { freePort } from '../platform/support/free-port.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const main = join(root, 'dist/tools/hypercube/main.js');

/** The commands of each section with some, by its heading. */
function readSections(): Map<string, string> {
  const page = readFileSync(join(root, 'docs/your-own-model.md'), 'utf8');
  const sections = page.split(/^## /m).map((section): [string, string] => {
    const blocks = [...section.matchAll(/^```sh\n([\s\S]*?)^```$/gm)].map(([, block]) => block);
    return [section.split('\n', 1)[0] ?? '', blocks.join('')];
  });
  return new Map(sections.filter(([, commands]) => commands !== ''));
}

function hasCurl(): boolean {
  return spawnSync('curl', ['--version']).error === undefined;
}

test('the walkthroughs of the guide run as they are written', { skip: !hasCurl() }, async (t) => {
  const work = join(temporaryFolder(t), 'work');
  const port = await freePort();
  const sections = readSections();
  assert.equal(sections.size, 4);
  for (const [heading, commands] of sections) {
    // The program's path comes last: it may hold any of the other words, such as "work/".
    const script = commands
      // A long timeout, because the first request to a cold process on a busy machine is slow.
      .replaceAll('--port 8080', `--port 8080 --timeout-ms 60000`)
      .replaceAll('8080', String(port))
      .replaceAll('work/', `${work}/`)
      .replaceAll(/^hypercube /gm, () => `'${process.execPath}' '${main}' `);
    const stop = heading === 'Serve it' ? 'kill $!; wait $!' : '';
    const { status, stdout, stderr } = spawnSync('sh', ['-ec', `${script}\n${stop}`], {
      cwd: root,
      encoding: 'utf8',
      timeout: 300_000,
    });
    assert.equal(status, 0, `${heading}: ${stderr}`);
    if (heading === 'Serve it') assert.match(stdout, /"probabilities?":\[0\.\d+\]/);
    else {
      assert.match(stdout, /The model does not say:/, heading);
      assert.match(stdout, /scores +8 raw rows, largest difference/, heading);
      assert.match(stdout, /published version 1 of /, heading);
    }
  }
});
