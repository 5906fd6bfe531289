import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createCli } from '../../../../lib/platform/cli.ts';
import {
  addInputOptions,
  type InputOptions,
  inputSpecOf,
} from '../../../../tools/cube-builder/sources/input-options.ts';
import type { InputSpec } from '../../../../tools/cube-builder/sources/row-source.ts';

function parse(...args: string[]): InputSpec {
  const program = addInputOptions(createCli('t', 't')).configureOutput({
    writeErr: () => undefined,
  });
  program.parse(args, { from: 'user' });
  return inputSpecOf(['in'], program.opts<InputOptions>(), { table: 'users' });
}

test('options as given reach the spec; without them the files decide', () => {
  const none = JSON.parse(JSON.stringify(parse()));
  assert.deepEqual(none, { paths: ['in'], table: 'users' });
  const all = parse(
    ...[
      '--format',
      'csv',
      '--key-column',
      'id',
      '--sign-key',
      '14',
      '--value-columns',
      'a,b',
      '--no-header',
    ],
    ...['--value-format', 'f16', '--arrays', 'x,y', '--dim', '8'],
  );
  assert.deepEqual(all, {
    ...{ paths: ['in'], table: 'users', format: 'csv', keyColumn: 'id', valueColumns: ['a', 'b'] },
    signKey: 14,
    ...{ header: false, valueFormat: 'f16', arrays: ['x', 'y'], dim: 8 },
  });
  assert.equal(parse('--header').header, true);
  assert.throws(() => parse('--format', 'xls'));
  assert.throws(() => parse('--dim', '0'));
});
