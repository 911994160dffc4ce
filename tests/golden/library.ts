/** The device library that tests run on, and what they load. */
export { library } from "../fixtures/devices.ts";

/** The fixtures of the repository. */
export const FIXTURES = `${import.meta.dir}/../fixtures/golden`;

/** The trained demo checkpoint. */
export const DEMO = `${import.meta.dir}/../../models/demo`;
