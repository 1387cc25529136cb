-- PARTS: what a script is put together from.
--
-- A script makes its functions anew whenever it runs. So all of them are fields of M, which costs least; and the parts that
-- most steps do without are made when something of them is first asked for.

local later = {}

local M = setmetatable({ is_library = false }, {
  __index = function(made, name)
    while #later > 0 do
      table.remove(later, 1)()
      local found = rawget(made, name)
      if found ~= nil then
        return found
      end
    end
    return nil
  end,
})

-- The same for what is of circuits alone.
local C = setmetatable({}, getmetatable(M))

function M.more(part)
  later[#later + 1] = part
end
