import assert from 'node:assert/strict';
import { test } from 'node:test';
import { toArguments } from '../../../../lib/platform/arguments.ts';
import { createCli } from '../../../../lib/platform/cli.ts';
import {
  addInputOptions,
  type InputOptions,
  toInputSpec,
} from '../../../../tools/cube-builder/sources/input-options.ts';
import type { InputSpec } from '../../../../tools/cube-builder/sources/row-source.ts';

function parse(...args: string[]): InputSpec {
  const program = addInputOptions(createCli('t', 't')).configureOutput({
    writeErr: () => undefined,
  });
  program.parse(args, { from: 'user' });
  return toInputSpec(['in'], program.opts<InputOptions>(), { table: 'users' });
}

test('options are copied to the spec, and missing options stay undefined', () => {
  const none = JSON.parse(JSON.stringify(parse()));
  assert.deepEqual(none, { paths: ['in'], table: 'users' });
  const all = parse(
    ...toArguments({
      format: 'csv',
      keyColumn: 'id',
      signKey: 14,
      valueColumns: 'a,b',
      noHeader: true,
      valueFormat: 'f16',
      arrays: 'x,y',
      dim: 8,
    }),
  );
  assert.deepEqual(all, {
    paths: ['in'],
    table: 'users',
    format: 'csv',
    keyColumn: 'id',
    valueColumns: ['a', 'b'],
    signKey: 14,
    header: false,
    valueFormat: 'f16',
    arrays: ['x', 'y'],
    dim: 8,
  });
  assert.equal(parse('--header').header, true);
  assert.throws(() => parse('--format', 'xls'));
  assert.throws(() => parse('--dim', '0'));
});
