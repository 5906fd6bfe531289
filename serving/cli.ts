/** The command line of serving: settings of every origin to one configuration, one process from start to graceful end. */
import { CubeError } from '../lib/core/errors.ts';
import { type Command, createCli, runCli } from '../lib/platform/cli.ts';
import { ownerLeft, reportListening } from '../lib/platform/kept-process.ts';
import { runService, type Stoppable } from '../lib/platform/lifecycle.ts';
import { createLogger } from '../lib/platform/logs.ts';
import { configReport, type Ignored } from './config/config-report.ts';
import { readPaddleConf } from './config/paddle-conf.ts';
import {
  completeConfig,
  type ServingConfig,
  type ServingSettings,
} from './config/serving-config.ts';
import { readSettingsFile } from './config/settings-file.ts';
import { addSettingOptions, layOver, type SettingFlags } from './config/settings-flags.ts';
import { startServing } from './server.ts';

interface Flags extends SettingFlags {
  readonly config?: string;
  readonly confDir?: string;
  readonly checkConfig?: boolean;
}

const EXAMPLES = `
Every option may also be set as a variable (HYPERCUBE_TIMEOUT_MS for --timeout-ms); a flag goes before it.

Examples:
  serving --repository repo --bundle ctr-dnn
  serving --repository repo --bundle ctr-dnn --store remote --fleet fleet.json --port 8080
  serving --repository repo --bundle ctr-dnn --channel stable,canary --store local --data-dir serving-data
  serving --repository repo --bundle ctr-dnn --pinned-version 2 --store remote --fleet fleet.json
  serving --bundle-dir exported/ctr-dnn --bundle ctr-dnn
  serving --config serving.yaml --check-config
  serving --conf-dir conf --check-config
  serving load-redis --help            loads a version's rows into Redis before anybody serves it
  head -3 rows.tsv | curl -s -H 'content-type: text/tab-separated-values' --data-binary @- localhost:8080/v1/ctr:predict`;

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

function createProgram(): Command {
  const program = createCli('serving', 'Answers predictions of models, following their channels.')
    .option('--config <file>', 'serving.yaml: all of the settings below, and several models')
    .option('--conf-dir <folder>', "Paddle Serving's conf folder, read as it is")
    .option('--check-config', 'say what was understood and what is ignored, and end');
  return addSettingOptions(program)
    .addHelpText('after', EXAMPLES)
    .action((flags: Flags) => serve(flags, program));
}

async function serve(flags: Flags, program: Command): Promise<void> {
  const { config, ignored } = readConfig(flags, program);
  if (flags.checkConfig === true) {
    process.stdout.write(configReport(config, ignored));
    return;
  }
  const logger = createLogger('serving', config.logLevel);
  for (const { setting, why } of ignored) logger.warn({ setting, why }, 'setting is ignored');
  // Supervisors send it to have files read again: what may change is followed without.
  process.on('SIGHUP', () => logger.info('SIGHUP: nothing to do'));
  const asked = ownerLeft();
  const start = async (): Promise<Stoppable> => {
    const serving = await startServing({ config, logger });
    reportListening(serving.address);
    return serving;
  };
  await runService(start, logger, asked === undefined ? {} : { asked });
}

interface Understood {
  readonly config: ServingConfig;
  readonly ignored: readonly Ignored[];
}

/** What is wrong in a configuration is wrong usage, wherever it is written. */
function readConfig(flags: Flags, program: Command): Understood {
  try {
    const { settings, ignored } = readFiles(flags);
    return { config: completeConfig(layOver(settings, flags)), ignored };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    if (code !== 'INVALID_ARGUMENT') throw error;
    return program.error(`error: ${message}`);
  }
}

function readFiles({ config, confDir }: Flags): {
  settings?: ServingSettings;
  ignored: readonly Ignored[];
} {
  if (config !== undefined && confDir !== undefined) {
    throw new CubeError('INVALID_ARGUMENT', 'give --config or --conf-dir, not both');
  }
  if (confDir !== undefined) return readPaddleConf(confDir);
  return { ignored: [], ...(config !== undefined && { settings: readSettingsFile(config) }) };
}
