/** The options that say how an input is read; what they leave open, the files say. */

import { DIM_MAX } from '../../../lib/core/layer-format.ts';
import { type Command, integerBetween, Option } from '../../../lib/platform/cli.ts';
import { INPUT_FORMATS, type InputSpec, VALUE_FORMATS } from './row-source.ts';

/** What `addInputOptions` adds, as commander gives it. */
export interface InputOptions {
  readonly format?: NonNullable<InputSpec['format']>;
  readonly keyColumn?: string;
  readonly signKey?: number;
  readonly valueColumns?: readonly string[];
  readonly header?: boolean;
  readonly valueFormat?: NonNullable<InputSpec['valueFormat']>;
  readonly arrays?: readonly string[];
  readonly dim?: number;
}

export function addInputOptions(command: Command): Command {
  const names = (text: string): string[] => text.split(',');
  return command
    .addOption(
      new Option(
        '--format <name>',
        'what the input is, where content and name do not say it',
      ).choices(INPUT_FORMATS),
    )
    .option('--key-column <name>', 'the column of the key: a name, or a number from 0')
    .option(
      '--sign-key <slot>',
      'keys are text: hash them as features of the slot with this index',
      integerBetween(0, 0xffff_ffff),
    )
    .option('--value-columns <names>', 'the columns that make the row: a,b,c', names)
    .option('--header', 'CSV and TSV begin with a line of names')
    .option('--no-header', 'CSV and TSV begin with a row')
    .addOption(
      new Option('--value-format <name>', 'what the bytes of binary values are').choices(
        VALUE_FORMATS,
      ),
    )
    .option('--arrays <names>', 'only these arrays or tensors of a file: a,b,c', names)
    .option(
      '--dim <n>',
      'numbers of a row: checked, and needed without rows',
      integerBetween(1, DIM_MAX),
    );
}

/** The spec of an input from its paths and options. @param table its name, where one is given */
export function inputSpecOf(
  paths: readonly string[],
  options: InputOptions,
  more: Pick<InputSpec, 'table' | 'delta'> = {},
): InputSpec {
  const { format, keyColumn, signKey, valueColumns, header, valueFormat, arrays, dim } = options;
  return {
    paths,
    format,
    keyColumn,
    signKey,
    valueColumns,
    header,
    valueFormat,
    arrays,
    dim,
    ...more,
  };
}
