/** The command line of cube-agent: agent, controller, and commands for operators. */
import { type Command, createCli, runCli } from '../lib/platform/cli.ts';

const EXAMPLES = `
Examples:
  Run one agent on every host:
    cube-agent run --repository /srv/models --bundle ctr-dnn --channel stable \\
      --data-dir /var/lib/hypercube --server 127.0.0.1:8000 --server 127.0.0.1:8001

  Activate version 2 on all hosts and wait for all servers; roll back later:
    cube-agent activate --repository /srv/models --bundle ctr-dnn --version 2 \\
      --reason "retrained" --fleet fleet.json --wait
    cube-agent rollback --repository /srv/models --bundle ctr-dnn --reason "AUC fell"

  Compare version 3 with the active version:
    cube-agent gate --repository /srv/models --bundle ctr-dnn --version 3 --fleet fleet.json

  Print the state:
    cube-agent status  --repository /srv/models --bundle ctr-dnn --fleet fleet.json
    cube-agent doctor  --repository /srv/models --bundle ctr-dnn --fleet fleet.json
    cube-agent history --repository /srv/models --bundle ctr-dnn

  Copy a version from another repository:
    cube-agent publish --from /mnt/training/models --repository /srv/models \\
      --bundle ctr-dnn --version 2
`;

interface CommandModule {
  /** The commands that the loaded function adds. */
  readonly names: readonly string[];
  readonly load: () => Promise<(program: Command) => void>;
}

/** In the order of the help. */
const COMMANDS: readonly CommandModule[] = [
  {
    names: ['run'],
    load: async () => (await import('./commands/run-command.ts')).addRunCommand,
  },
  {
    names: ['status'],
    load: async () => (await import('./commands/status-command.ts')).addStatusCommand,
  },
  {
    names: ['doctor'],
    load: async () => (await import('./commands/doctor-command.ts')).addDoctorCommand,
  },
  {
    names: ['activate', 'stage', 'rollback', 'history'],
    load: async () => (await import('./commands/channel-commands.ts')).addChannelCommands,
  },
  {
    names: ['publish'],
    load: async () => (await import('./commands/publish-command.ts')).addPublishCommand,
  },
  {
    names: ['gate'],
    load: async () => (await import('./commands/gate-command.ts')).addGateCommand,
  },
  {
    names: ['policy'],
    load: async () => (await import('./commands/policy-command.ts')).addPolicyCommand,
  },
  {
    names: ['experiment'],
    load: async () => (await import('./commands/experiment-command.ts')).addExperimentCommand,
  },
  {
    names: ['fleet'],
    load: async () => (await import('./commands/fleet-command.ts')).addFleetCommand,
  },
  {
    names: ['pin', 'unpin', 'quarantine'],
    load: async () => (await import('./commands/pin-commands.ts')).addPinCommands,
  },
  {
    names: ['rollout'],
    load: async () => (await import('./commands/rollout-command.ts')).addRolloutCommand,
  },
  {
    names: ['controller'],
    load: async () => (await import('./commands/controller-command.ts')).addControllerCommand,
  },
  {
    names: ['gc'],
    load: async () => (await import('./commands/gc-command.ts')).addGcCommand,
  },
  {
    names: ['keygen', 'sign'],
    load: async () => (await import('./commands/key-commands.ts')).addKeyCommands,
  },
  {
    names: ['transfer'],
    load: async () => (await import('./commands/transfer-command.ts')).addTransferCommand,
  },
  {
    names: ['watch-donefiles'],
    load: async () => (await import('./commands/donefiles-command.ts')).addDonefilesCommand,
  },
  {
    names: ['deploy-cube'],
    load: async () => (await import('./commands/deploy-cube-command.ts')).addDeployCubeCommand,
  },
];

export async function run(argv: readonly string[] = process.argv.slice(2)): Promise<number> {
  return runCli(await createProgram(argv[0]), argv);
}

/**
 * @param name of a command: only its module is loaded, which halves the time to load modules. All
 *   commands are added if it is undefined or not the name of a command, as for `--help`.
 */
export async function createProgram(name?: string): Promise<Command> {
  const program: Command = createCli(
    'cube-agent',
    'Loads versions of a bundle from a repository into the cube-servers of a host, and changes ' +
      'which version a channel points to.',
  )
    .addHelpText('after', EXAMPLES)
    // `--version` after a command belongs to the command: a version of the bundle.
    .enablePositionalOptions();
  const named = COMMANDS.filter(({ names }) => names.some((one) => one === name));
  const needed = named.length > 0 ? named : COMMANDS;
  const adders = await Promise.all(needed.map(({ load }) => load()));
  for (const add of adders) add(program);
  return program;
}
