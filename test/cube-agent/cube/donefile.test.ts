/** What donefiles ask for: any lines, in any order, half-written too. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  buildChain,
  countPublishedSteps,
  parseDonefile,
} from '../../../cube-agent/cube/donefile.ts';

const line = (id: string, key: string, input = `/models/${key}/${id}`): string =>
  JSON.stringify({ id, key, input });

test('the last base counts, with its own patches in order', () => {
  const bases = parseDonefile(`${line('10', '10')}\n${line('20', '20')}\n\n  \n`, 'base.txt');
  const patches = [line('11', '10'), line('21', '20'), line('10', '20'), line('22', '20')];
  const chain = buildChain(bases, parseDonefile(patches.join('\n'), 'patch.txt'));
  assert.deepEqual(
    chain.steps.map(({ version, kind, parent }) => [version, kind, parent]),
    [
      ['20', 'base', undefined],
      ['20_21', 'delta', '20'],
      ['20_22', 'delta', '20_21'],
    ],
  );
  assert.match(chain.problems[0]?.reason ?? '', /line 3: id 10 is lower than the earlier id 21/);
  assert.equal(
    countPublishedSteps(chain, () => false),
    0,
  );
  // What was collected since is not built again.
  assert.equal(
    countPublishedSteps(chain, (version) => version === '20_21'),
    2,
  );
});

test('two models of one second are two versions; the same line twice is one', () => {
  const text = [line('5', '5', '/a'), line('5', '5', '/a'), line('5', '5', '/b')].join('\n');
  const patches = parseDonefile([line('5', '5', '/p'), line('5', '5', '/q')].join('\n'), 'p');
  assert.deepEqual(
    buildChain(parseDonefile(text, 'b'), patches).steps.map(({ version, input }) => [
      version,
      input,
    ]),
    [
      ['5.2', '/b'],
      ['5.2_5', '/p'],
      ['5.2_5.2', '/q'],
    ],
  );
});

test('a broken line is named with its number and stops no other', () => {
  const broken = [
    'no json',
    '{"id":"1","key":"1","input":"/x"',
    '[]',
    '{"id":"-1","key":"1","input":"/x"}',
    '{"id":"1","key":"99999999999999999999999","input":"/x"}',
    '{"id":1.5,"key":"1","input":"/x"}',
    '{"id":"1","key":"1","input":"relative"}',
    '{"id":"1","key":"1","input":"--output-path"}',
    '{"id":"../1","key":"1","input":"/x"}',
    'x'.repeat(100_000),
  ];
  const { entries, problems } = parseDonefile([...broken, line('7', '7')].join('\n'), 'base.txt');
  assert.deepEqual(
    entries.map(({ id, line: at }) => [id, at]),
    [['7', broken.length + 1]],
  );
  assert.deepEqual(
    problems.map(({ line: at }) => at),
    broken.map((_, i) => i + 1),
  );
  assert.match(problems[0]?.reason ?? '', /^base\.txt: line 1: not JSON/);
  assert.deepEqual(buildChain(parseDonefile('', 'base.txt'), undefined).steps, []);
});

test('a shell command in a path is a path', () => {
  const input = '/x; rm -rf $(HOME) `id` && *';
  const [entry] = parseDonefile(line('1', '1', input), 'base.txt').entries;
  assert.equal(entry?.input, input);
});

test('names are distinct, and depend on nothing but the lines before', () => {
  const entry = fc.record({
    id: fc.integer({ min: 0, max: 5 }).map(String),
    key: fc.constant('0'),
    input: fc.constantFrom('/a', '/b', '/c'),
  });
  fc.assert(
    fc.property(fc.array(entry, { maxLength: 12 }), fc.nat(12), (lines, cut) => {
      const texts = lines.map((one) => JSON.stringify(one));
      const base = parseDonefile(line('0', '0'), 'base.txt');
      const versions = (upTo: number): string[] =>
        buildChain(base, parseDonefile(texts.slice(0, upTo).join('\n'), 'patch.txt')).steps.map(
          ({ version }) => version,
        );
      const all = versions(texts.length);
      assert.equal(new Set(all).size, all.length);
      const some = versions(cut);
      assert.deepEqual(all.slice(0, some.length), some);
    }),
  );
});
