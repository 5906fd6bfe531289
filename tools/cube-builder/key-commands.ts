/** `cube-builder keygen` and `cube-builder rewrap`: encryption keys and their rotation. */
import {
  addDryRunOption,
  addJsonOption,
  type Command,
  parseNameOption,
  withDryRunNote,
} from '../../lib/platform/cli.ts';
import { createKeyFile, processKeys, requireNoFile } from '../../lib/platform/encryption-keys.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { addEncryptOptions, type EncryptOptions, requireKeys } from './encryption.ts';

const KEYGEN_EXAMPLES = `
Example:
  cube-builder keygen --out models.key
`;

const REWRAP_EXAMPLES = `
Example, with the new key as the first and the old key as the second line of keys.txt:
  cube-builder rewrap --output-path /srv/models --bundle ads --encrypt-key-file keys.txt

Layers are not read or written again. Give every process the new key before the old key is removed.
`;

interface RewrapOptions extends EncryptOptions {
  readonly outputPath: string;
  readonly bundle: string;
  readonly version?: string;
  readonly json?: boolean;
  readonly dryRun?: boolean;
}

interface RewrappedVersion {
  readonly version: string;
  /** Data keys that were wrapped; 0 if the first key opens the version already. */
  readonly keys: number;
}

export function addKeyCommands(program: Command): void {
  const keygen = program
    .command('keygen')
    .description('Makes a file with a new random encryption key.')
    .requiredOption('--out <file>', 'File to create; only its owner may read it');
  addJsonOption(addDryRunOption(keygen)).addHelpText('after', KEYGEN_EXAMPLES).action(makeKey);
  const rewrap = program
    .command('rewrap')
    .description('Lets a new key open encrypted versions: wraps their data keys again.')
    .requiredOption('--output-path <location>', 'Repository: a folder or s3://bucket/prefix')
    .requiredOption('--bundle <name>', 'Bundle name', parseNameOption('bundle'))
    .option(
      '--version <name>',
      'Version (default: all encrypted versions)',
      parseNameOption('version'),
    );
  addJsonOption(addDryRunOption(addEncryptOptions(rewrap)))
    .addHelpText('after', REWRAP_EXAMPLES)
    .action(rewrapVersions);
}

interface KeygenOptions {
  readonly out: string;
  readonly json?: boolean;
  readonly dryRun?: boolean;
}

function makeKey({ out, json, dryRun = false }: KeygenOptions): void {
  if (dryRun) requireNoFile(out);
  const keyId = dryRun ? undefined : createKeyFile(out).keyId;
  const text = withDryRunNote(`${out}: encryption key${keyId ? ` ${keyId}` : ''}`, { dryRun });
  printLine(json ? JSON.stringify({ out, keyId, dryRun }) : text);
}

async function rewrapVersions(options: RewrapOptions): Promise<void> {
  const to = requireKeys(options);
  const { outputPath, bundle, dryRun = false } = options;
  const repository = openRepository(outputPath, { dryRun });
  const names =
    options.version === undefined ? await repository.listVersions(bundle) : [options.version];
  const versions: RewrappedVersion[] = [];
  for (const version of names) {
    const manifest = await repository.readManifest(bundle, version);
    if (manifest.encryption === undefined) continue;
    versions.push({ version, keys: await repository.rewrap(manifest, processKeys, to) });
  }
  if (options.json) {
    printLine(
      JSON.stringify({
        repository: repository.location,
        bundle,
        keyId: to.keyId,
        versions,
        dryRun,
      }),
    );
    return;
  }
  for (const { version, keys } of versions) {
    const text = keys === 0 ? 'nothing to do' : `${keys} keys wrapped`;
    printLine(withDryRunNote(`${bundle} ${version}: ${text}`, { dryRun }));
  }
  printLine(`key ${to.keyId} opens ${versions.length} encrypted versions of ${bundle}`);
}
