/** Which options say something about which formats: one that none of the inputs takes is a mistake, not a wish. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { InputFormat, InputSpec } from './row-source.ts';

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

/** @throws CubeError INVALID_ARGUMENT naming an option that is of no format read here */
export function checkFormatOptions(input: InputSpec, formats: ReadonlySet<InputFormat>): void {
  for (const option of FORMAT_OPTIONS) {
    if (input[option.field] === undefined || formats.size === 0) continue;
    if (option.formats.some((format) => formats.has(format))) continue;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${option.flag} is for ${option.formats.join(', ')}; ${input.paths.join(' ')} is ${[...formats].join(', ')}`,
    );
  }
}
