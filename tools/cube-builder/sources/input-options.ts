/** The options that control how an input is read, and the check which formats accept them. */

import { CubeError } from '../../../lib/core/errors.ts';
import { DIM_MAX } from '../../../lib/core/layer-format.ts';
import { type Command, Option, parseIntegerBetween } from '../../../lib/platform/cli.ts';
import { INPUT_FORMATS, type InputFormat, type InputSpec, VALUE_FORMATS } from './row-source.ts';

/** Values of the options that `addInputOptions` adds, as commander returns them. */
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
        'Input format (default: detected from content and name)',
      ).choices(INPUT_FORMATS),
    )
    .option(
      '--key-column <name>',
      'Key column: a name, or a number from 0 (default: key, or the first column)',
    )
    .option(
      '--sign-key <slot>',
      'Hash text keys as features of the slot with this index (default: keys are integers)',
      parseIntegerBetween(0, 0xffff_ffff),
    )
    .option(
      '--value-columns <names>',
      'Columns that form the row: a,b,c (default: all but the key column)',
      names,
    )
    .option('--header', 'The first line of CSV and TSV files has column names (default: detected)')
    .option('--no-header', 'The first line of CSV and TSV files is a row')
    .addOption(
      new Option('--value-format <name>', 'Encoding of binary values (default: f32)').choices(
        VALUE_FORMATS,
      ),
    )
    .option('--arrays <names>', 'Arrays or tensors of a file to read: a,b,c (default: all)', names)
    .option(
      '--dim <n>',
      'Numbers per row; required if the input has no rows (default: from the input)',
      parseIntegerBetween(1, DIM_MAX),
    );
}

/** Makes an InputSpec from paths and options. `context.table` is the table name, if given. */
export function toInputSpec(
  paths: readonly string[],
  options: InputOptions,
  context: Pick<InputSpec, 'table' | 'delta'> = {},
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
    ...context,
  };
}

interface FormatOption {
  readonly flag: string;
  readonly field: keyof InputSpec;
  readonly formats: readonly InputFormat[];
}

const RECORDS_OF_FIELDS = ['csv', 'tsv', 'jsonl', 'parquet'] as const;

const FORMAT_OPTIONS: readonly FormatOption[] = [
  { flag: '--key-column', field: 'keyColumn', formats: RECORDS_OF_FIELDS },
  { flag: '--value-columns', field: 'valueColumns', formats: RECORDS_OF_FIELDS },
  { flag: '--header', field: 'header', formats: ['csv', 'tsv'] },
  {
    flag: '--value-format',
    field: 'valueFormat',
    formats: ['seqfile', 'cube-dict', 'parquet', 'jsonl', 'csv', 'tsv'],
  },
  { flag: '--arrays', field: 'arrays', formats: ['npz', 'safetensors'] },
];

/** @throws CubeError INVALID_ARGUMENT for an option that none of the formats accepts */
export function checkFormatOptions(input: InputSpec, formats: ReadonlySet<InputFormat>): void {
  for (const option of FORMAT_OPTIONS) {
    if (input[option.field] === undefined || formats.size === 0) continue;
    if (option.formats.some((format) => formats.has(format))) continue;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${option.flag} applies to ${option.formats.join(', ')}, but ${input.paths.join(' ')} ` +
        `is ${[...formats].join(', ')}: remove the option`,
    );
  }
}
