/** The command line of cube-agent: one command that runs on every host, and those with which people steer. */
import { type Command, createCli, runCli } from '../lib/platform/cli.ts';
import { addChannelCommands } from './commands/channel-commands.ts';
import { addControllerCommand } from './commands/controller-command.ts';
import { addDeployCubeCommand } from './commands/deploy-cube-command.ts';
import { addDoctorCommand } from './commands/doctor-command.ts';
import { addDonefilesCommand } from './commands/donefiles-command.ts';
import { addFleetCommand } from './commands/fleet-command.ts';
import { addGateCommand } from './commands/gate-command.ts';
import { addGcCommand } from './commands/gc-command.ts';
import { addKeyCommands } from './commands/keys.ts';
import { addPinCommands } from './commands/pin-commands.ts';
import { addPolicyCommand } from './commands/policy-command.ts';
import { addPublishCommand } from './commands/publish-command.ts';
import { addRolloutCommand } from './commands/rollout-command.ts';
import { addRunCommand } from './commands/run-command.ts';
import { addStatusCommand } from './commands/status-command.ts';
import { addTransferCommand } from './commands/transfer-command.ts';

const EXAMPLES = `
Examples:
  On every host, one agent for its servers:
    cube-agent run --repository /srv/models --bundle ctr-dnn --channel stable \\
      --data-dir /var/lib/cube --server 127.0.0.1:8000 --server 127.0.0.1:8001

  Move every host to version 2, wait until all servers answer with it, and back:
    cube-agent activate --repository /srv/models --bundle ctr-dnn --version 2 \\
      --reason "retrained" --fleet fleet.json --wait
    cube-agent rollback --repository /srv/models --bundle ctr-dnn --reason "AUC fell"

  Is version 3 as good as the one that is active?
    cube-agent gate --repository /srv/models --bundle ctr-dnn --version 3 --fleet fleet.json

  Look:
    cube-agent status  --repository /srv/models --bundle ctr-dnn --fleet fleet.json
    cube-agent doctor  --repository /srv/models --bundle ctr-dnn --fleet fleet.json
    cube-agent history --repository /srv/models --bundle ctr-dnn

  Copy a version that another repository holds:
    cube-agent publish --from /mnt/training/models --repository /srv/models \\
      --bundle ctr-dnn --version 2
`;

export function run(argv?: readonly string[]): Promise<number> {
  const program: Command = createCli(
    'cube-agent',
    'Brings versions from a repository to the cube-servers of a host, and moves channels.',
  )
    .addHelpText('after', EXAMPLES)
    // `--version` after a command is that command's own: a version of the model.
    .enablePositionalOptions();
  addRunCommand(program);
  addStatusCommand(program);
  addDoctorCommand(program);
  addChannelCommands(program);
  addPublishCommand(program);
  addGateCommand(program);
  addPolicyCommand(program);
  addFleetCommand(program);
  addPinCommands(program);
  addRolloutCommand(program);
  addControllerCommand(program);
  addGcCommand(program);
  addKeyCommands(program);
  addTransferCommand(program);
  addDonefilesCommand(program);
  addDeployCubeCommand(program);
  return runCli(program, argv);
}
