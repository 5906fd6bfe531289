/** The bundle that is checked, and the command lines that repair it. */
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import type { RepositoryRemedies } from '../../lib/repository/repository-checks.ts';

export const RESTORE_ACCESS =
  'restore access to the repository; until then agents and serving keep the versions they have';

export interface CheckTarget {
  readonly repository: string;
  readonly bundle: string;
  readonly channel: string;
}

/** A command line that changes or reads a channel of the bundle. */
export function formatChannelCommand(
  { repository, bundle, channel }: CheckTarget,
  command: string,
  options = '',
): string {
  const target = `--repository ${repository} --bundle ${bundle} --channel ${channel}`;
  return `cube-agent ${command} ${target}${options === '' ? '' : ` ${options}`}`;
}

export function createRemedies(target: CheckTarget): RepositoryRemedies {
  const { repository, bundle } = target;
  const formatVersion = (version: string): string =>
    `--repository ${repository} --bundle ${bundle} --version ${version}`;
  const publishAgain = (version: string): string =>
    `cube-agent publish --from <another repository> ${formatVersion(version)}`;
  return {
    restoreAccess: RESTORE_ACCESS,
    restoreEntry:
      'restore the entry from a copy; only the newest entry may be removed instead, so that the ' +
      'previous one applies (docs/operations.md)',
    activate: (channel) =>
      formatChannelCommand(
        { ...target, channel },
        'activate',
        '--version <version> --reason <why>',
      ),
    rollBack: (channel, version) => {
      if (channel === CANDIDATE_CHANNEL) {
        return `cube-agent stage ${formatVersion('<other>')} --reason <why>`;
      }
      const options = `--from ${version} --reason <why>`;
      return formatChannelCommand({ ...target, channel }, 'rollback', options);
    },
    publishAgain,
    sign: (version) => `cube-agent sign ${formatVersion(version)} --signing-key <file>`,
    restoreManifest: (version) => `delete its manifest.json, then run: ${publishAgain(version)}`,
    restoreFile: (version) => `delete the file, then run: ${publishAgain(version)}`,
    restoreLayer: (version) =>
      `delete the layer file if it exists, then run: ${publishAgain(version)}`,
  };
}
