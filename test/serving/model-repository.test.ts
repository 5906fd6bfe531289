/** A model repository on disk: half copies, changes, failures, version policies, control modes. */
import assert from 'node:assert/strict';
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { readText } from '../../lib/platform/files.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { ModelRepository } from '../../serving/models/model-repository.ts';
import {
  lookAtRepository,
  type ModelLook,
  type RepositoryLook,
  settleLooks,
} from '../../serving/models/repository-looks.ts';
import type { ModelPlan, RepositoryModel } from '../../serving/models/repository-model.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { waitFor } from '../support/processes.ts';

/** A version is the text of its file; `broken` does not load, nor does `broken at path`. */
interface TextVersion {
  readonly version: string;
  readonly text: string;
  retire(): Promise<void>;
}

class TestRepository {
  readonly folder: string;
  readonly retired: string[] = [];
  readonly warnings: string[] = [];
  readonly errors: string[] = [];
  readonly models: ModelRepository<TextVersion>;

  constructor(
    t: TestContext,
    mode: 'none' | 'poll' | 'explicit',
    files: Readonly<Record<string, string>>,
    load: readonly string[] = [],
  ) {
    this.folder = temporaryFolder(t);
    for (const [path, text] of Object.entries(files)) this.write(path, text);
    this.models = new ModelRepository({
      config: { folder: this.folder, mode, pollMs: 10, load, models: [] },
      clock: systemClock,
      logger: Object.assign(createLogger('test', { level: 'silent' }), {
        warn: ({ problem, error }: { problem?: string; error?: string }) => {
          if (problem !== undefined) this.warnings.push(problem);
          if (error !== undefined) this.errors.push(error);
        },
      }),
      plan: (look) => this.#plan(look),
      onSwitch: () => {},
      onLoadFailed: () => {},
    });
    t.after(() => this.models.stop());
    this.models.start();
  }

  write(path: string, text: string): void {
    const full = join(this.folder, path);
    mkdirSync(join(full, '..'), { recursive: true });
    writeFileSync(full, text);
  }

  remove(path: string): void {
    rmSync(join(this.folder, path), { recursive: true });
  }

  /** Model to its versions' texts, by the highest version first. */
  get served(): Record<string, string[]> {
    return Object.fromEntries(
      [...this.models.models].map(([name, model]) => [
        name,
        model.loadedVersions.map(({ version, text }) => `${version}:${text}`).sort(),
      ]),
    );
  }

  async untilServed(expected: Record<string, string[]>): Promise<void> {
    const text = JSON.stringify(expected);
    await waitFor(`serves ${text}`, () => {
      const served = JSON.stringify(this.served);
      return served === text || served;
    });
  }

  /** The text of config.pbtxt: `all`, or the models that the model depends on. */
  #plan(look: ModelLook): ModelPlan<TextVersion> {
    const config = look.settingsStamp.includes('config.pbtxt')
      ? readText(join(look.folder, 'config.pbtxt'))
      : '';
    if (config === 'wrong at path') {
      throw new CubeError('INVALID_ARGUMENT', `${join(look.folder, 'config.pbtxt')}:1: wrong`);
    }
    if (config === 'wrong') throw new CubeError('INVALID_ARGUMENT', 'config.pbtxt:1: wrong');
    return {
      dependencies: config.startsWith('needs ') ? [config.slice('needs '.length)] : [],
      chooseVersions: (versions) =>
        config === 'none'
          ? []
          : config === 'all'
            ? versions
            : [...versions].sort((a, b) => Number(a) - Number(b)).slice(-1),
      load: async (version) => {
        const text = readText(join(look.folder, version, 'model.onnx'));
        if (text === 'broken at path') {
          throw new CubeError('CORRUPT', `${join(look.folder, version)} is broken`);
        }
        if (text === 'broken') throw new CubeError('CORRUPT', `${version} is broken`);
        const retire = async (): Promise<void> => {
          this.retired.push(`${look.name} ${version}:${text}`);
        };
        return { version, text, retire };
      },
    };
  }
}

test('polling adds, replaces and removes models and versions', async (t) => {
  const repository = new TestRepository(t, 'poll', { 'a/1/model.onnx': 'one' });
  await repository.untilServed({ a: ['1:one'] });
  repository.write('a/2/model.onnx', 'two');
  repository.write('b/7/model.onnx', 'seven');
  await repository.untilServed({ a: ['2:two'], b: ['7:seven'] });
  repository.write('a/2/model.onnx', 'two again');
  await repository.untilServed({ a: ['2:two again'], b: ['7:seven'] });
  repository.write('a/config.pbtxt', 'all');
  await repository.untilServed({ a: ['1:one', '2:two again'], b: ['7:seven'] });
  repository.remove('a/2');
  await repository.untilServed({ a: ['1:one'], b: ['7:seven'] });
  repository.remove('b');
  await repository.untilServed({ a: ['1:one'] });
  assert.deepEqual(repository.retired.slice(0, 2), ['a 1:one', 'a 2:two']);
});

test('a folder without a usable version is named, with what to do', async (t) => {
  const repository = new TestRepository(t, 'poll', { 'a/01/model.onnx': 'one' });
  const model = (): RepositoryModel<TextVersion> | undefined => repository.models.models.get('a');
  await waitFor('a problem', () => model()?.status.problem?.includes('has no version') ?? false);
  const problem = 'a has no version; put each one into a folder named by its number, such as a/1';
  assert.equal(model()?.status.problem, problem);
  assert.ok(repository.warnings.some((text) => text.startsWith(`${repository.folder}/a has no `)));
  repository.write('a/config.pbtxt', 'none');
  repository.write('a/1/model.onnx', 'one');
  const refused = /^the version policy of a allows none of its versions \(1\)$/;
  await waitFor('a policy problem', () => refused.test(model()?.status.problem ?? ''));
});

test('a broken version or configuration leaves the old one serving', async (t) => {
  const repository = new TestRepository(t, 'poll', { 'a/1/model.onnx': 'one' });
  await repository.untilServed({ a: ['1:one'] });
  repository.write('a/2/model.onnx', 'broken');
  const model = repository.models.models.get('a')!;
  await waitFor('version 2 fails', () => model.status.failed.length > 0);
  assert.equal(model.status.failed[0]?.message, '2 is broken');
  assert.equal(model.status.problem, 'version 2: 2 is broken');
  assert.deepEqual(repository.served, { a: ['1:one'] });
  assert.throws(
    () => model.findByVersion('2'),
    /version "2" of a is not served here \(served: 1\)/,
  );
  repository.write('a/2/model.onnx', 'mended');
  await repository.untilServed({ a: ['2:mended'] });
  assert.equal(model.status.problem, undefined);
  repository.write('a/config.pbtxt', 'wrong');
  await waitFor('a problem', () => model.status.problem === 'config.pbtxt:1: wrong');
  assert.equal(model.current.text, 'mended');
});

test('errors for callers name no folder of the server, and the log does', async (t) => {
  const files = { 'a/1/model.onnx': 'broken at path', 'b/config.pbtxt': 'wrong at path' };
  const repository = new TestRepository(t, 'none', files);
  const { models } = repository.models;
  const expected = { a: 'version 1: a/1 is broken', b: 'b/config.pbtxt:1: wrong' };
  for (const [name, problem] of Object.entries(expected)) {
    const model = models.get(name)!;
    await waitFor(name, () => model.status.problem === problem || model.status);
    assert.throws(
      () => model.current,
      ({ message }) => !message.includes(repository.folder),
    );
  }
  const { folder } = repository;
  assert.deepEqual(repository.warnings, [`${folder}/b/config.pbtxt:1: wrong`]);
  assert.deepEqual(repository.errors, [`${folder}/a/1 is broken`]);
  const absent = new TestRepository(t, 'explicit', {}, ['c']);
  const missing = 'the repository has no folder c, or its files keep changing';
  const problem = (): string | undefined => absent.models.models.get('c')?.status.problem;
  await waitFor('a problem', () => problem() === missing || problem());
  assert.deepEqual(absent.warnings, [missing.replace('the repository', absent.folder)]);
});

test('mode none loads everything once, and refuses load requests', async (t) => {
  const repository = new TestRepository(t, 'none', {
    'a/1/model.onnx': 'one',
    'a/x/model.onnx': 'not a version',
    'a/01/model.onnx': 'not a version',
    'empty/readme.txt': 'no versions',
  });
  await repository.untilServed({ a: ['1:one'], empty: [] });
  const empty = repository.models.models.get('empty')!;
  await waitFor('a problem', () => empty.status.problem?.includes('no version') === true);
  assert.throws(() => empty.current, /no version of empty is served: empty has no version/);
  await assert.rejects(repository.models.load('a'), /start serving with --model-control-mode expl/);
  await assert.rejects(repository.models.unload('a', false), { code: 'UNSUPPORTED' });
});

test('mode explicit loads and unloads on request, with dependencies', async (t) => {
  const repository = new TestRepository(
    t,
    'explicit',
    {
      'a/1/model.onnx': 'one',
      'b/1/model.onnx': 'bee',
      'both/1/model.onnx': 'both',
      'both/config.pbtxt': 'needs b',
    },
    ['a'],
  );
  await repository.untilServed({ a: ['1:one'], b: [], both: [] });
  assert.equal(repository.models.models.get('b')?.status.unloaded, true);
  const unknown = /^the repository has no model "c"; known here: a, b, both$/;
  await assert.rejects(repository.models.load('c'), { message: unknown });
  await repository.models.load('both');
  await repository.untilServed({ a: ['1:one'], b: ['1:bee'], both: ['1:both'] });
  await repository.models.unload('both', true);
  assert.deepEqual(repository.served, { a: ['1:one'], b: [], both: [] });
  repository.write('a/2/model.onnx', 'broken');
  await assert.rejects(repository.models.load('a'), /a was not loaded: version 2: 2 is broken/);
  assert.deepEqual(repository.served['a'], ['1:one']);
  repository.write('a/2/model.onnx', 'two');
  await repository.models.load('a');
  assert.deepEqual(repository.served['a'], ['2:two']);
});

test('loading an ensemble uses steps that have just changed or were mended', async (t) => {
  const repository = new TestRepository(t, 'explicit', {
    'both/1/model.onnx': 'both',
    'both/config.pbtxt': 'needs b',
  });
  await repository.untilServed({ both: [] });
  repository.write('b/1/model.onnx', 'broken');
  await assert.rejects(repository.models.load('b'), /b was not loaded/);
  repository.write('b/1/model.onnx', 'bee');
  await repository.models.load('both');
  assert.deepEqual(repository.served, { both: ['1:both'], b: ['1:bee'] });
  repository.write('b/2/model.onnx', 'two');
  await repository.models.load('both');
  assert.deepEqual(repository.served['b'], ['2:two']);
});

test('a model that would depend on itself is refused, and the old version goes on', async (t) => {
  const files = {
    'outer/1/model.onnx': 'outer',
    'outer/config.pbtxt': 'needs chain',
    'chain/1/model.onnx': 'chain',
    'chain/config.pbtxt': 'needs b',
    'b/1/model.onnx': 'bee',
  };
  const served = { b: ['1:bee'], chain: ['1:chain'], outer: ['1:outer'] };
  const reason = 'ensemble chain contains itself: chain -> outer -> chain';
  const polled = new TestRepository(t, 'poll', files);
  await polled.untilServed(served);
  const chain = polled.models.models.get('chain')!;
  polled.write('chain/config.pbtxt', 'needs outer');
  await waitFor('a refusal', () => chain.status.failed[0]?.message === reason || chain.status);
  assert.equal(chain.status.failed[0]?.code, 'INVALID_ARGUMENT');
  polled.write('chain/config.pbtxt', 'needs chain');
  const self = 'ensemble chain contains itself: chain -> chain';
  await waitFor('a refusal', () => chain.status.failed[0]?.message === self || chain.status);
  assert.deepEqual(polled.served, served);
  assert.deepEqual(polled.retired, []);
  // The order may be turned around: no cycle is left.
  polled.write('outer/config.pbtxt', 'needs b');
  polled.write('chain/config.pbtxt', 'needs outer');
  await waitFor('chain is loaded', () => polled.retired.includes('chain 1:chain'));
  assert.equal(chain.status.problem, undefined);

  const explicit = new TestRepository(t, 'explicit', files, ['outer']);
  await explicit.untilServed(served);
  explicit.write('chain/config.pbtxt', 'needs outer');
  await assert.rejects(explicit.models.load('chain'), new RegExp(reason));
  assert.deepEqual(explicit.served, served);
});

test('a change that fails does not close a cycle through the old version', async (t) => {
  const repository = new TestRepository(t, 'poll', {
    'outer/1/model.onnx': 'outer',
    'outer/config.pbtxt': 'needs chain',
    'chain/1/model.onnx': 'chain',
  });
  const served = { chain: ['1:chain'], outer: ['1:outer'] };
  await repository.untilServed(served);
  const { models } = repository.models;
  repository.write('outer/1/model.onnx', 'broken');
  repository.write('outer/config.pbtxt', 'all');
  await waitFor('outer fails', () => models.get('outer')?.status.problem !== undefined);
  repository.write('chain/config.pbtxt', 'needs outer');
  await waitFor('chain fails', () => models.get('chain')?.status.problem !== undefined);
  assert.match(models.get('chain')?.status.problem ?? '', /chain -> outer -> chain/);
  assert.deepEqual(repository.served, served);
});

test('a version that appears piecewise is used when two looks are equal', (t) => {
  const folder = temporaryFolder(t);
  const add = (path: string, text: string): void => {
    mkdirSync(join(folder, path, '..'), { recursive: true });
    writeFileSync(join(folder, path), text);
  };
  const empty: RepositoryLook = new Map();
  let [settled, before] = [empty, empty];
  const look = (): string[] => {
    const now = lookAtRepository(folder);
    settled = settleLooks(settled, before, now);
    before = now;
    return [...(settled.get('a')?.versions.keys() ?? [])];
  };
  add('a/1/model.onnx', 'x');
  assert.deepEqual([look(), look()], [[], ['1']]);
  add('a/2/part', 'x');
  assert.deepEqual(look(), ['1']);
  add('a/2/part', 'xx');
  assert.deepEqual(look(), ['1']);
  add('a/2/model.onnx', 'x');
  assert.deepEqual([look(), look()], [['1'], ['1', '2']]);
  renameSync(join(folder, 'a/1'), join(folder, 'a/.old'));
  assert.deepEqual([look(), look()], [['1', '2'], ['2']]);
  assert.throws(() => lookAtRepository(join(folder, 'none')), /is not a folder/);
});

test('what two equal looks show is settled, whatever was seen before', () => {
  const stamps = fc.constantFrom('x', 'y');
  const model = fc.dictionary(fc.constantFrom('1', '2', '3'), stamps);
  const looks = fc.array(fc.tuple(stamps, fc.option(model, { nil: undefined })), {
    minLength: 1,
    maxLength: 12,
  });
  const toLook = ([settingsStamp, versions]: [string, Record<string, string> | undefined]) =>
    new Map<string, ModelLook>(
      versions && [
        [
          'a',
          { name: 'a', folder: 'a', settingsStamp, versions: new Map(Object.entries(versions)) },
        ],
      ],
    );
  const property = fc.property(looks, (sequence) => {
    let [settled, before]: RepositoryLook[] = [new Map(), new Map()];
    const seen = sequence.map(toLook);
    for (const now of [...seen, seen.at(-1)!]) {
      settled = settleLooks(settled!, before!, now);
      before = now;
    }
    const shown = (look: RepositoryLook): unknown =>
      [...look.values()].map(({ settingsStamp, versions }) => [
        settingsStamp,
        [...versions].sort(),
      ]);
    assert.deepEqual(shown(settled!), shown(before!));
  });
  fc.assert(property, { numRuns: 300 });
});
