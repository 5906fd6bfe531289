/** The package as its users get it: packed, unpacked into an empty folder, imported by name, typed, and looking keys up. */
import assert from 'node:assert/strict';
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import {
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, test } from 'node:test';
import { formatFleet } from '../../lib/core/fleet.ts';
import { formatManifest } from '../../lib/core/manifest.ts';
import { manifestOf, tableWith } from './oracle.ts';
import { TestFleet } from './test-fleet.ts';

const folder = mkdtempSync(join(tmpdir(), 'hypercube-package-'));
let fleet: TestFleet | undefined;
after(async () => {
  rmSync(folder, { recursive: true, force: true });
  await fleet?.stop();
});

/** As `npm install` of the tarball leaves a folder, without asking a registry for what we have here. */
function install(): string {
  const pack = ['pack', '--ignore-scripts', '--silent', '--json', '--pack-destination', folder];
  const npm = process.platform === 'win32' ? 'npm.cmd' : 'npm';
  const [packed] = JSON.parse(execFileSync(npm, pack, { encoding: 'utf8' }));
  const user = join(folder, 'user');
  const modules = join(user, 'node_modules');
  mkdirSync(modules, { recursive: true });
  execFileSync('tar', ['-xzf', join(folder, packed.filename), '-C', modules]);
  renameSync(join(modules, 'package'), join(modules, 'hypercube'));
  const { dependencies } = JSON.parse(readFileSync('package.json', 'utf8'));
  for (const name of Object.keys(dependencies)) {
    if (name.startsWith('@')) mkdirSync(join(modules, name.split('/')[0]!), { recursive: true });
    symlinkSync(resolve('node_modules', name), join(modules, name));
  }
  writeFileSync(join(user, 'package.json'), '{"type":"module"}');
  return user;
}

const SCRIPT = `
import { CtrClient, CubeClient, FleetFile, keyWords, OUTCOME_HIT, OUTCOME_UNSEEN, parseManifest } from 'hypercube';
import type { CtrRow, LookupGroup } from 'hypercube';
import { readFileSync } from 'node:fs';

const file = new FleetFile('fleet.json', { onInvalid: (error) => console.error(error.message) });
const client = new CubeClient({ fleet: () => file.current(), policy: { loadBalancer: 'la' } });
const manifest = parseManifest(readFileSync('manifest.json', 'utf8'), 'manifest.json');
const group: LookupGroup = {
  table: 't', keys: keyWords([1n, 2, 99]), count: 3,
  rows: new Float32Array(3 * 2), outcomes: new Uint8Array(3),
};
const { version, unseen } = await client.lookup(manifest, [group], 5_000);
if (group.outcomes[0] !== OUTCOME_HIT || group.outcomes[2] !== OUTCOME_UNSEEN) throw new Error('outcomes');
const requests: number = client.stats().requests;
console.log(JSON.stringify({ version, unseen, requests, rows: [...group.rows] }));
client.close();
const row: CtrRow = { dense: [5, null], categorical: ['a', ['b', 'c']] };
for (const url of ['http://127.0.0.1:1', 'grpc://127.0.0.1:1']) {
  const ctr = new CtrClient({ url, retryMax: 0 });
  const code: string = await ctr.predict([row]).then(() => 'none', (error) => error.code);
  if (code !== 'UNAVAILABLE') throw new Error(code);
  ctr.close();
}
`;

test('the packed package works in an empty folder, and its types too', async () => {
  const table = tableWith('t', 2, [1n, 2n]);
  const version = { bundle: 'ctr', version: '1', shardNum: 2, tables: [table] };
  fleet = await TestFleet.start([version], 1);
  const user = install();
  writeFileSync(join(user, 'fleet.json'), formatFleet(fleet.fleet));
  writeFileSync(join(user, 'manifest.json'), formatManifest(manifestOf(version)));
  writeFileSync(join(user, 'main.ts'), SCRIPT);
  mkdirSync(join(user, 'node_modules', '@types'));
  symlinkSync(resolve('node_modules/@types/node'), join(user, 'node_modules', '@types', 'node'));
  symlinkSync(resolve('node_modules/undici-types'), join(user, 'node_modules', 'undici-types'));
  const options = ['--strict', '--module', 'nodenext', '--target', 'es2023', '--types', 'node'];
  const compiler = resolve('node_modules/typescript/bin/tsc');
  const compiled = spawnSync(
    process.execPath,
    [compiler, ...options, '--skipLibCheck', 'main.ts'],
    {
      cwd: user,
      encoding: 'utf8',
    },
  );
  assert.equal(compiled.status, 0, compiled.stdout);
  const printed = await new Promise<string>((resolvePrinted, reject) => {
    execFile(process.execPath, ['main.js'], { cwd: user }, (error, stdout, stderr) => {
      if (error === null) resolvePrinted(stdout);
      else reject(new Error(stderr));
    });
  });
  const row = (key: bigint): number[] => [...table.rows.get(key)!];
  assert.deepEqual(JSON.parse(printed), {
    ...{ version: '1', unseen: 1, requests: 2 },
    rows: [...row(1n), ...row(2n), 0, 0],
  });
});
