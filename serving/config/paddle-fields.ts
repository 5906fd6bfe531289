/** Lists the fields of a Paddle Serving message that have no effect here, each with the reason. */
import { suggestNames } from '../../lib/core/nearest-name.ts';
import type { TextMessage } from '../../proto/text-format.ts';
import type { IgnoredSetting } from './config-report.ts';

/**
 * @param read fields that have an effect
 * @param reasons why a known field has no effect
 */
export function listIgnoredFields(
  message: TextMessage,
  read: readonly string[],
  reasons: Readonly<Record<string, string>>,
  ignored: IgnoredSetting[],
): void {
  for (const name of message.names.filter((one) => !read.includes(one))) {
    const known = Object.hasOwn(reasons, name) ? reasons[name] : undefined;
    const hint = suggestNames(name, [...read, ...Object.keys(reasons)]);
    ignored.push({
      setting: `${message.getFieldLocation(name)} ${name}`,
      reason: known ?? `unknown setting; ${hint}`,
    });
  }
}

/**
 * Reads a string field that older files name otherwise.
 * @throws CubeError when a message has both
 */
export function readRenamed(
  message: TextMessage,
  name: string,
  olderName: string,
): readonly string[] {
  const values = message.strings(name);
  const olderValues = message.strings(olderName);
  if (values.length > 0 && olderValues.length > 0) {
    message.fail(`${olderName} is the older name of ${name}: give only one of them`);
  }
  return values.length > 0 ? values : olderValues;
}
